"""Replies of workers to jobs: plain data that crosses threads and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from engine.model.fuzzy import PartTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.heads.work import Work


class Facts(NamedTuple):
    """Facts of a loaded model."""

    vocab_size: int
    context: int
    depth: int = 0
    """Layers; 0 for a model without layers."""
    clock_error: int = 0
    """Most nanoseconds by which times of the worker's device are wrong (`engine.model.clock`)."""


class Taken(NamedTuple):
    """Memory of a worker's KV caches, in bytes."""

    held: int
    """What they hold now."""
    more: int
    """What a run adds to it; negative if its caches are smaller."""
    row: int
    """Keys, values and kept states of one token, in all models that the run uses."""
    spare: int = 0
    """What torch keeps of a GPU's memory without using it."""
    free: int = 0
    """What is free on the worker's device."""
    exact: bool = False
    """Whether a number takes more than two bytes."""


class Grown(NamedTuple):
    """One node of a drafted tree or chain in a worker's reply."""

    id: int
    parent: int
    """Index of its parent in the tree; -1 is the prefix's last token."""
    level: int
    """Number of ancestors."""
    row: int
    """Slab row of the q it was drawn from; -1 for none."""
    probability: float
    top: tuple[tuple[int, float], ...]
    forward: int
    """Number of the job's forward that drafted it."""


class Stamp(NamedTuple):
    """Start and end of one piece of work, in nanoseconds of the worker's clock."""

    kind: str
    start: int
    end: int
    rows: int
    context: int
    lane: int = 0
    """Index of the device among the worker's."""
    cells: int = 0
    """Query-key cells of its attention, in one layer and one head."""
    batch: int = 1
    """Sequences of its rows."""
    work: Work | None = None
    """Work of a drafting head's forward."""
    parts: tuple[PartTime, ...] = ()
    """Of a fuzzy forward: times of its attention layers and exchanges."""
    communicated: int = 0
    """Nanoseconds of its communication with the other ranks of a model split by tensors."""
    alone: bool = False
    """Whether this device alone ran the job, in any lane."""

    def read(self, time_of: Callable[[int], int]) -> Stamp:
        """Return a copy with times in place of marks (`engine.model.clock`)."""
        parts = tuple(p._replace(start=time_of(p.start), end=time_of(p.end)) for p in self.parts)
        return self._replace(start=time_of(self.start), end=time_of(self.end), parts=parts)


class Reply(NamedTuple):
    """A job's value, and one stamp per forward."""

    value: Any
    stamps: tuple[Stamp, ...]
