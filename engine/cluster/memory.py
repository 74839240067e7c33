"""Memory of this machine's devices: what is free, what models take, and whether they fit.

All CPU cores share one memory, unless the user limits each of them. Reading a GPU's free memory has
never run on a GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine.cluster.site import Assignment
from engine.errors import ModelError, UsageError, shown
from engine.pairs.pair import Pair
from engine.pairs.progress import megabytes
from engine.pairs.sizes import Split, model_size
from engine.trace.events import Device
from engine.workers.memory import cpu_free

MACHINE = "this machine"
"""Name of the memory that CPU cores share."""


class Part(NamedTuple):
    """What one model keeps on one device, in bytes."""

    model: str
    """The workers' name: target, drafter, drafter-2."""
    device: Device
    share: str
    """The part of the model: all, layers 0-3 of 8, or rank 1 of 2."""
    weights: int
    per_token: int
    """Keys and values of one token."""


def part_of(pair: Pair, dtype: torch.dtype, model: str, assignment: Assignment, member: int) -> Part:
    """Return what a member of an assignment keeps of a model of a pair.

    Raises:
        ModelError: A file of the model is missing, broken or unsupported.
    """
    stage, device = assignment.stages[member], assignment.members[member].devices[0]
    layers = assignment.layers[member] if assignment.layers else stage and stage[:2]
    split = Split(layers, *((member, len(assignment.members)) if assignment.sharded else (0, 1)))
    size = model_size(pair.models[model], dtype, on_cpu=device.kind == "cpu", split=split)
    return Part(model, device, assignment.share(member) or "all", *size)


def measured(device: Device) -> int:
    """Return the free bytes of a device's memory now."""
    if device.kind == "cuda":
        number = int(device.name.split("/")[0].partition(":")[2])
        total: int = torch.cuda.get_device_properties(number).total_memory
        return total - torch.cuda.device_memory_used(number)
    return cpu_free()


@dataclass(frozen=True)
class Memory:
    """The memory of devices: limits that the user set, else what is measured."""

    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    """Device name -> bytes."""
    measure: Callable[[Device], int] = measured
    machine: str = MACHINE
    """Name of the memory that CPU cores share."""

    def name(self, device: Device) -> str:
        """Return the name of a device's memory; devices of one memory have the same."""
        own = device.name.split("/")[0]
        return own if self.is_limited(device) or device.kind == "cuda" else self.machine

    def is_limited(self, device: Device) -> bool:
        """Return whether the user limited a device."""
        return device.name.split("/")[0] in self.limits

    def free(self, device: Device, held: Sequence[Part] = ()) -> int:
        """Return the bytes that further models may take on a device, beside what it holds.

        Args:
            device: The device.
            held: Parts that are loaded; a measurement has them already, a limit has not.
        """
        limit = self.limits.get(device.name.split("/")[0])
        if limit is None:
            return self.measure(device)
        return max(0, limit - self.needed(held).get(self.name(device), 0))

    def needed(self, parts: Iterable[Part]) -> dict[str, int]:
        """Return the bytes of weights by the name of their memory."""
        needed = defaultdict[str, int](int)
        for part in parts:
            needed[self.name(part.device)] += part.weights
        return needed

    def check(self, parts: Sequence[Part], held: Sequence[Part], dtype: torch.dtype) -> None:
        """Check that the weights of parts of `dtype` fit into the free memory of their devices.

        Args:
            parts: What is to be loaded.
            held: What is loaded already.
            dtype: Dtype of the weights.

        Raises:
            ModelError: They do not; the message says what would fit.
        """
        devices = {self.name(part.device): part.device for part in parts}
        for name, needed in self.needed(parts).items():
            if needed <= (free := self.free(devices[name], held)):
                continue
            models = sorted({part.model for part in parts if self.name(part.device) == name})
            halved = dtype.itemsize > 2 and needed // 2 <= free
            advice = (
                f"--dtype bfloat16 takes {megabytes(needed // 2)}"
                if halved
                else f"at most {free / dtype.itemsize / 1e6:,.0f} million weights of {_name(dtype)} fit"
            )
            raise ModelError(
                f"{' and '.join(models)}: the weights take {megabytes(needed)} in the memory of {name}, of which "
                f"{megabytes(free)} are free; {advice} (specscope plan shows the parts)"
            )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def parse_limits(text: str, devices: Sequence[Device]) -> dict[str, int]:
    """Return the bytes of each limited device in a text like `0=4GiB,1=4GiB`.

    Raises:
        UsageError: A number is none of a device, or a size is no size.
    """
    from accelerate.utils import convert_file_size_to_int  # the import takes a second

    limits: dict[str, int] = {}
    for entry in filter(None, text.split(",")):
        number, _, size = entry.partition("=")
        if not number.strip().isdecimal() or int(number) >= len(devices):
            raise UsageError(
                f"memory is {shown(text)}; {shown(entry)} must name a device from 0 to {len(devices) - 1} and its "
                "size, as in 0=4GiB,1=4GiB"
            )
        try:
            limits[devices[int(number)].name] = int(convert_file_size_to_int(size.strip()))
        except (ValueError, OverflowError):
            raise UsageError(
                f"memory is {shown(text)}; {shown(size)} must be a size with a unit: KB, MB, GB, KiB, MiB or GiB"
            ) from None
    return limits
