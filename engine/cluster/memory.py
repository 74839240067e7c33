"""Memory of devices: what is free, what weights and KV caches take, and whether they fit.

All CPU cores share one memory, unless the user limits each of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specscope.engine.checkpoints.progress import megabytes
from specscope.engine.errors import ModelError, OutOfMemory, UsageError, shown
from specscope.engine.trace.events import Device
from specscope.engine.worker.jobs import AskCaches, Begin, CacheMemory
from specscope.engine.worker.memory import cpu_free
from specscope.engine.worker.worker import Worker

MACHINE = "this machine"
KV_TOKENS = 2048
"""Tokens whose keys and values devices keep free, if the context is not shorter."""
SMALLER = "a shorter prompt or a smaller model"


class ModelBytes(NamedTuple):
    """What one model keeps on one device, in bytes."""

    model: str
    """The workers' name: target, drafter, drafter-2."""
    device: Device
    share: str
    """The part of the model: all, layers 0-3 of 8, or rank 1 of 2."""
    weights: int
    per_token: int
    dtype: torch.dtype = torch.float32


def measured(device: Device) -> int:
    if device.kind == "cuda":
        number = int(device.name.split("/")[0].partition(":")[2])
        total: int = torch.cuda.get_device_properties(number).total_memory
        return total - torch.cuda.device_memory_used(number)
    return cpu_free()


def name_of(device: Device) -> str:
    return device.name.split("/")[0] if device.kind == "cuda" else MACHINE


@dataclass(frozen=True)
class Memory:
    """The memory of devices: limits that the user set, else what is measured."""

    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    """Device name -> bytes."""
    measure: Callable[[Device], int] = measured
    name_of: Callable[[Device], str] = name_of

    def name(self, device: Device) -> str:
        """Return the name of a device's memory; devices of one memory have the same."""
        return device.name.split("/")[0] if self.is_limited(device) else self.name_of(device)

    def is_limited(self, device: Device) -> bool:
        return device.name.split("/")[0] in self.limits

    def free(self, device: Device, held: Sequence[ModelBytes] = ()) -> int:
        """Return the bytes that further models may take on a device.

        A measurement has the loaded parts (`held`) already, a limit has not.
        """
        limit = self.limits.get(device.name.split("/")[0])
        if limit is None:
            return self.measure(device)
        return max(0, limit - self.needed(held).get(self.name(device), 0))

    def needed(self, parts: Iterable[ModelBytes]) -> dict[str, int]:
        needed = defaultdict[str, int](int)
        for part in parts:
            needed[self.name(part.device)] += part.weights
        return needed

    def check(self, parts: Sequence[ModelBytes], held: Sequence[ModelBytes]) -> None:
        """Check that the weights of parts fit beside what is loaded already (`held`).

        Raises:
            ModelError: They do not; the message says what would fit.
        """
        devices = {self.name(part.device): part.device for part in parts}
        for name, needed in self.needed(parts).items():
            if needed > (free := self.free(devices[name], held)):
                models = sorted({part.model for part in parts if self.name(part.device) == name})
                raise ModelError(
                    f"{' and '.join(models)}: the weights take {megabytes(needed)} in the memory of {name}, of which "
                    f"{megabytes(free)} are free; {advice(needed, free, parts[0].dtype)} (specscope plan shows the parts)"
                )


def advice(needed: int, free: int, dtype: torch.dtype) -> str:
    """Return what would fit into `free` bytes in place of `needed` bytes of `dtype`."""
    if dtype.itemsize > 2 and needed // 2 <= free:
        return f"--dtype bfloat16 takes {megabytes(needed // 2)}"
    name = str(dtype).removeprefix("torch.")
    return f"at most {free / dtype.itemsize / 1e6:,.0f} million weights of {name} fit"


def parse_limits(text: str, devices: Sequence[Device]) -> dict[str, int]:
    """Return the bytes of each limited device in a text like `0=4GiB,1=4GiB`.

    Raises:
        UsageError: A number is none of a device, or a size is no size.
    """
    sizes = parse_sizes(text, f" from 0 to {len(devices) - 1}")
    if beyond := [number for number in sizes if number >= len(devices)]:
        raise UsageError(
            f"memory is {shown(text)}; {shown(beyond[0])} must name a device from 0 to {len(devices) - 1}; "
            "specscope plan takes more, for devices that are not here"
        )
    return {devices[number].name: size for number, size in sizes.items()}


def parse_sizes(text: str, which: str = "") -> dict[int, int]:
    """Return the bytes by device number in a text like `0=4GiB,1=4GiB`; see `parse_limits`."""
    from accelerate.utils import convert_file_size_to_int  # the import takes a second

    sizes: dict[int, int] = {}
    for entry in filter(None, text.split(",")):
        number, _, size = entry.partition("=")
        if not re.fullmatch(r"\s*\d{1,9}\s*", number, re.ASCII):
            raise UsageError(
                f"memory is {shown(text)}; {shown(entry)} must name a device{which} and its size, as in 0=4GiB,1=4GiB"
            )
        if int(number) in sizes:
            raise UsageError(f"memory is {shown(text)}, which names device {int(number)} twice; name it once")
        try:
            sizes[int(number)] = int(convert_file_size_to_int(size.strip()))
        except (ValueError, OverflowError):
            raise UsageError(
                f"memory is {shown(text)}; {shown(size)} must be a size with a unit: KB, MB, GB, KiB, MiB or GiB"
            ) from None
    return sizes


@dataclass(frozen=True)
class RunSize:
    """The parts of a run's size that a user can change."""

    begin: Begin
    new: int
    """Most new tokens of each sequence."""
    setting: str = ""
    """The option that sets how many sequences decode at once; empty if it is always one."""

    @property
    def rows(self) -> int:
        return self.begin.capacity + 1

    def fitting(self, budget: int, row: int, *, exact: bool) -> str:
        """Return the settings with which a run would fit into `budget` bytes; empty if none would.

        A token takes `row` bytes; `exact`: a number takes more than two.
        """
        begin, found = self.begin, list[str]()
        new = budget // (begin.slots * row) - (self.rows - self.new)
        if new > 0:
            found.append(f"--max-new-tokens {min(new, self.new - 1)}")
        sequences = budget // (self.rows * row)
        if self.setting and 0 < sequences < begin.slots:
            found.append(f"{self.setting}{sequences}")
        if exact and begin.slots * self.rows * row // 2 <= budget:
            found.append("--dtype bfloat16")
        return " or ".join(found)

    def advised(self, error: OutOfMemory) -> OutOfMemory:
        fits = self.fitting(error.budget, error.row, exact=error.exact) if error.row else ""
        return OutOfMemory(f"{error}; try {fits or SMALLER}")


def check_caches(
    workers: Sequence[Worker],
    models: Mapping[str, tuple[str, ...]],
    memory: Memory,
    held: Sequence[ModelBytes],
    run: RunSize,
) -> list[CacheMemory]:
    """Return what caches take, if those of a run fit into the free memory of its devices.

    Args:
        workers: All single workers, those that take no part in the run included.
        models: Worker's name -> names of the models that the run uses there.
        memory: The memory of the devices.
        held: The loaded models.
        run: The run.
    """
    devices = {memory.name(worker.devices[0]): worker.devices[0] for worker in workers}
    sharing = defaultdict[str, list[CacheMemory]](list)
    found = caches_of(workers, models, run.begin)
    for worker, taken in zip(workers, found, strict=True):
        sharing[memory.name(worker.devices[0])].append(taken)
    for name, caches in sharing.items():
        left = memory.free(devices[name], held) + sum(taken.spare for taken in caches)
        if memory.is_limited(devices[name]):  # a limit counts no caches yet, a measurement does
            left -= sum(taken.held for taken in caches)
        if sum(taken.more for taken in caches) > max(0, left):
            raise _out_of_memory(name, left, caches, run)
    return found


def caches_of(
    workers: Sequence[Worker], models: Mapping[str, tuple[str, ...]], begin: Begin
) -> list[CacheMemory]:
    """Return what each worker's KV caches hold, and what a run adds; arguments as above."""
    waits = [worker.prepare(AskCaches(begin, models.get(worker.name, ()))) for worker in workers]
    return [wait().value for wait in waits]


def _out_of_memory(name: str, left: int, caches: Sequence[CacheMemory], run: RunSize) -> OutOfMemory:
    slots = run.begin.slots
    held = sum(taken.held for taken in caches if taken.row)
    row, exact = sum(taken.row for taken in caches), any(taken.exact for taken in caches)
    fits = run.fitting(held + left, row, exact=exact)
    return OutOfMemory(
        f"the keys and values of {'a sequence' if slots == 1 else f'{slots} sequences'} of {run.rows:,} tokens need "
        f"{megabytes(sum(taken.more for taken in caches))} more in the memory of {name}, of which "
        f"{megabytes(max(0, left))} are free; {f'what fits: {fits}' if fits else f'try {SMALLER}'}"
    )
