"""The memory of a run's KV caches, compared with what is free before the run begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import OutOfMemory
from engine.pairs.progress import megabytes
from engine.trace.events import Device
from engine.workers.jobs import Begin, Room, Taken
from engine.workers.worker import Worker

SMALLER = "a shorter prompt or a smaller model"


class Free(NamedTuple):
    """A memory with room for KV caches."""

    memory: str
    """Its name; devices of one memory have the same."""
    bytes: int | None
    """What is free beside the weights; None if only the worker can measure it."""
    limited: bool = False
    """Whether the bytes are from a limit, which counts no caches yet; else they are measured."""


@dataclass(frozen=True)
class Asked:
    """The parts of a run's size that a user can change."""

    begin: Begin
    new: int
    """Most new tokens of each sequence."""
    setting: str = ""
    """The option that sets how many sequences decode at once; empty if it is always one."""

    @property
    def rows(self) -> int:
        """KV rows of a sequence."""
        return self.begin.capacity + 1

    def fitting(self, budget: int, row: int, *, exact: bool) -> str:
        """Return the settings with which a run would fit into a memory; empty if none would.

        Args:
            budget: Its bytes for caches.
            row: Bytes of a token.
            exact: Whether a number takes more than two bytes.
        """
        begin, advice = self.begin, list[str]()
        new = budget // (begin.slots * row) - (self.rows - self.new)
        if new > 0:
            advice.append(f"--max-new-tokens {min(new, self.new - 1)}")
        sequences = budget // (self.rows * row)
        if self.setting and 0 < sequences < begin.slots:
            advice.append(f"{self.setting}{sequences}")
        if exact and begin.slots * self.rows * row // 2 <= budget:
            advice.append("--dtype bfloat16")
        return " or ".join(advice)

    def advised(self, error: OutOfMemory) -> OutOfMemory:
        """Return the error of a forward with advice."""
        fits = self.fitting(error.budget, error.row, exact=error.exact) if error.row else ""
        return OutOfMemory(f"{error}; try {fits or SMALLER}")


@dataclass
class _Space:
    """One memory and what workers take of it."""

    free: int
    held: int = 0
    more: int = 0
    row: int = 0
    exact: bool = False

    def add(self, taken: Taken, *, limited: bool) -> None:
        """Count a worker's caches."""
        self.free += taken.spare - (taken.held if limited else 0)
        self.exact |= taken.exact
        self.row += taken.row
        self.more += taken.more
        self.held += taken.held if taken.row else 0


def check_caches(
    workers: Sequence[Worker],
    models: Mapping[str, tuple[str, ...]],
    free: Callable[[Device], Free | None],
    asked: Asked,
) -> None:
    """Check that the KV caches of a run fit into the free memory of its devices.

    Args:
        workers: All single workers, those that take no part in the run included.
        models: Worker's name -> names of the models that the run uses there.
        free: Returns the memory of a device; None if nobody knows it, then nothing is checked.
        asked: The run.

    Raises:
        OutOfMemory: They do not; the message says what would fit.
    """
    spaces = dict[str, _Space]()
    memories = [free(worker.devices[0]) for worker in workers]
    if not all(memories):
        return
    waits = [worker.prepare(Room(asked.begin, models.get(worker.name, ()))) for worker in workers]
    taken: list[Taken] = [wait().value for wait in waits]
    for memory, each in zip(memories, taken, strict=True):
        assert memory is not None, "checked above"
        free_bytes = each.free if memory.bytes is None else memory.bytes
        spaces.setdefault(memory.memory, _Space(free_bytes)).add(each, limited=memory.limited)
    for name, space in spaces.items():
        if space.more > max(0, space.free):
            raise _shortage(name, space, asked)


def _shortage(name: str, space: _Space, asked: Asked) -> OutOfMemory:
    slots, free = asked.begin.slots, max(0, space.free)
    sequences = "a sequence" if slots == 1 else f"{slots} sequences"
    fits = asked.fitting(space.held + space.free, space.row, exact=space.exact)
    return OutOfMemory(
        f"the keys and values of {sequences} of {asked.rows:,} tokens need {megabytes(space.more)} more in the memory "
        f"of {name}, of which {megabytes(free)} are free; {f'what fits: {fits}' if fits else f'try {SMALLER}'}"
    )
