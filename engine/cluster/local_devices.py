"""This machine as a site: its GPUs, or its CPU cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from engine.cluster.caches import Free
from engine.cluster.memory import Memory, part_of
from engine.cluster.site import Assignment, Loader, ModelPart, StageLimits, pipeline_assignments
from engine.errors import UsageError
from engine.layout import Colocated, LayerParallel, Layout, Pipelined, Separate
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.trace.events import Device
from engine.workers.transports.process import ProcessWorker, Setup
from engine.workers.transports.thread import ThreadWorker
from engine.workers.worker import Worker

DTYPES: dict[str, torch.dtype | None] = {
    "auto": None,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class LocalDevices:
    """This machine: its GPUs, or its CPU cores."""

    pair: Pair
    runtime: str
    devices: tuple[Device, ...]
    threads: int
    static: bool = False
    """Whether forwards of few rows have fixed shapes (`engine.model.static`)."""
    dtype: str = "auto"
    """Of the weights: float32, bfloat16, or auto for bfloat16 on GPUs and float32 on CPUs."""
    tp: int = 1
    """Devices that split each target by tensors."""
    drafter_tp: int = 1
    """Devices that split each drafter by tensors."""
    spans: tuple[range, ...] = ()
    """Layers of each device of a target that is split by layers; empty for a target that is not."""
    memory: Memory = field(default_factory=Memory)
    where: str = "this machine has"
    """For messages about the number of devices."""

    @property
    def ways(self) -> int:
        """Devices of each target."""
        return len(self.spans) or self.tp

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first devices and targets the next ones.

        Without a drafter the first target gets the second device, if there is one.
        """
        match layout.arrangement:
            case Colocated() | Pipelined() if max(self.tp, self.drafter_tp) > 1:
                raise UsageError(
                    "tp and drafter_tp do not go together with a co-located or pipelined placement: "
                    "leave them at 1, or choose another placement"
                )
            case Colocated() if self.spans:
                raise UsageError(
                    f"the target is split by layers over {self.ways} devices, and a co-located placement has one: "
                    "choose another placement"
                )
            case Colocated():
                device = self.devices[min(1, len(self.devices) - 1)]
                drafter = Assignment(f"{device.name}/drafter", (device,))
                return {"drafter": [drafter], "target": [Assignment(device.name, (device,))]}
            case LayerParallel(ranks):
                return self._layer_parallel(ranks)
            case Pipelined(stages) if self.spans:
                return self._pipelined(stages)
            case Pipelined(stages):
                return pipeline_assignments(self._single(), stages)
            case Separate(targets, drafters):
                return self._separate(targets, drafters)

    def _single(self) -> list[Assignment]:
        """Return one worker's assignment for each device."""
        return [Assignment(device.name, (device,)) for device in self.devices]

    def _separate(self, targets: int, drafters: int) -> dict[str, list[Assignment]]:
        tp, drafter_tp, devices = self.ways, self.drafter_tp, self.devices
        needed = targets * tp + drafters * drafter_tp
        if targets == 1 and drafters <= 1 and tp + drafter_tp > len(devices):
            return self._shared(drafters)
        if needed > len(devices):
            raise UsageError(
                f"{targets} target server(s) and {drafters} drafter(s) need {needed} devices; {self.where} "
                f"{len(devices)} ({devices[0].label} to {devices[-1].label}): ask for fewer, "
                "or use a virtual profile"
            )
        first = max(drafter_tp, drafters * drafter_tp)
        if first + targets * tp > len(devices):
            first = len(devices) - targets * tp
        return {
            "drafter": [ranks_of(devices[i * drafter_tp :][:drafter_tp]) for i in range(drafters)],
            "target": [self._target(devices[first + i * tp :][:tp]) for i in range(targets)],
        }

    def _shared(self, drafters: int) -> dict[str, list[Assignment]]:
        """Give the drafter the first devices, the target the last; shared ones have two tracks."""
        count, tracks = len(self.devices), dict[str, tuple[Device, ...]]()
        spans = {"drafter": range(self.drafter_tp), "target": range(count - self.ways, count)}
        both = set(spans["drafter"]) & set(spans["target"])
        for model, span in spans.items():
            devices = (self.devices[i] for i in span)
            tracks[model] = tuple(
                replace(device, name=f"{device.name}/{model}") if i in both else device
                for i, device in zip(span, devices, strict=True)
            )
        drafting = {"drafter": [ranks_of(tracks["drafter"])]} if drafters else {}
        return drafting | {"target": [self._target(tracks["target"])]}

    def _target(self, devices: tuple[Device, ...]) -> Assignment:
        """Return the assignment of a target to its devices."""
        if len(self.spans) < 2:
            return ranks_of(devices)
        members = tuple(Assignment(device.name, (device,)) for device in devices)
        name = f"{members[0].name}..{members[-1].name}/pipeline"
        return Assignment(name, devices, members, split=True, layers=self.spans)

    def _pipelined(self, stages: int) -> dict[str, list[Assignment]]:
        """Return PEARL's pipeline for a target that memory has split already."""
        if stages != self.ways:
            raise UsageError(
                f"stages is {stages}; memory has split the target over {self.ways} devices: leave stages at 0"
            )
        (target,) = self._separate(1, 1)["target"]
        return {"drafter": [target.members[-1], target.members[0]], "target": [target]}

    def _layer_parallel(self, ranks: int) -> dict[str, list[Assignment]]:
        """Draft on the first devices together; the target runs on the second one in turn.

        A target that is split by tensors has the same devices, as in EasySpec.
        """
        if self.ways > 1:
            (target,) = self._separate(1, 0)["target"]
            return {"drafter": [_together(target.members[:ranks])], "target": [target]}
        if ranks > len(self.devices):
            raise UsageError(
                f"{ranks} devices are to share the drafter's layers; {self.where} "
                f"{len(self.devices)} ({self.devices[0].label} to {self.devices[-1].label}): "
                "ask for fewer, or use a virtual profile"
            )
        members = tuple(self._single()[:ranks])
        return {"drafter": [_together(members)], "target": [members[1]]}

    def servers(self, drafters: int) -> int:
        """Return the target servers that fit on the devices that drafters leave free."""
        return (len(self.devices) - drafters * self.drafter_tp) // self.ways

    def drafters(self) -> int:
        """Return the number of the pair's drafters."""
        return len(self.pair.drafter_paths)

    def ranks(self) -> int:
        """Return the number of devices; if the target is split, the number of its own.

        A drafter that is split by tensors shares no layers: 1.
        """
        if self.drafter_tp > 1:
            return 1
        return self.ways if self.ways > 1 else len(self.devices)

    def depth(self) -> int:
        """Return 0: times are measured."""
        return 0

    def stage_limits(self) -> StageLimits:
        """Return two stages as usual: the fewest, because every further stage costs a transfer."""
        return StageLimits(len(self.spans) or 2, len(self.devices))

    def check_memory(self, loads: Sequence[ModelPart], held: Sequence[ModelPart]) -> None:
        """Check that models fit; see `Site.check_memory`."""
        dtype = dtype_of(self.dtype, self.devices[0])
        parts, loaded = ([part_of(self.pair, dtype, *part) for part in each] for each in (loads, held))
        self.memory.check(parts, loaded, dtype)

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None:
        """Do nothing: the operating system shares devices out."""

    def free(self, device: Device, held: Sequence[ModelPart]) -> Free:
        """Return the memory of a device; see `Site.free`."""
        memory, dtype = self.memory, dtype_of(self.dtype, device)
        limited = memory.is_limited(device)
        parts = [part_of(self.pair, dtype, *part) for part in held] if limited else []
        return Free(memory.name(device), memory.free(device, parts), limited)

    def start_worker(self, assignment: Assignment) -> Worker:
        """Start a process or a thread on the assigned device."""
        device = assignment.devices[0]
        if self.runtime == "local-thread":
            torch.set_num_threads(self.threads)
            return ThreadWorker(assignment.name, device, self.threads)
        pinned = device.kind == "cpu" and self.threads == 1
        core = int(device.name.split("/")[0].partition(":")[2]) if pinned else None
        return ProcessWorker(Setup(assignment.name, device, self.threads, core))

    def loader(self, model: str, assignment: Assignment) -> Loader:
        """Return a function that loads a model of the pair on the assigned device."""
        return loader_of(self.pair, model, assignment.devices[0], static=self.static, dtype=self.dtype)


def _together(members: tuple[Assignment, ...]) -> Assignment:
    """Return the assignment of a drafter whose layers several workers share."""
    devices = tuple(device for member in members for device in member.devices)
    return Assignment("+".join(member.name for member in members), devices, members)


def ranks_of(devices: tuple[Device, ...]) -> Assignment:
    """Return the assignment of a model to devices that split it by tensors, or to one device."""
    members = tuple(Assignment(device.name, (device,)) for device in devices)
    if len(members) == 1:
        return members[0]
    name = f"{members[0].name}..{members[-1].name}/ranks"
    return Assignment(name, devices, members, sharded=True)


def devices_of(device: str) -> tuple[Device, ...]:
    """Return this machine's devices of a kind: `cpu`, `cuda`, or `auto` for its GPUs if it has any.

    Raises:
        UsageError: The kind is unknown, or this machine has no such device.
    """
    gpus = torch.cuda.device_count()
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"there is no device {device!r}; choose auto, cpu or cuda")
    if device == "cuda" and not gpus:
        raise UsageError("device is cuda, but this machine has no CUDA device; use cpu")
    if device != "cpu" and gpus:
        names = [torch.cuda.get_device_name(i) for i in range(gpus)]
        return tuple(Device(f"cuda:{i}", "", f"GPU {i} ({name})", "cuda") for i, name in enumerate(names))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in sorted(allowed))


def dtype_of(dtype: str, device: Device) -> torch.dtype:
    """Return the dtype of weights on a device; `dtype` is a key of `DTYPES`."""
    return DTYPES[dtype] or (torch.bfloat16 if device.kind == "cuda" else torch.float32)


def loader_of(pair: Pair, model: str, device: Device, *, static: bool = False, dtype: str = "auto") -> Loader:
    """Return a function that loads a model of a pair on a device of this machine.

    Args:
        pair: The pair.
        model: The worker's name for the model.
        device: The device.
        static: As for `engine.pairs.load.load`.
        dtype: As for `LocalDevices`.
    """
    path = pair.models[model]
    on_gpu = device.kind == "cuda"
    return partial(
        load,
        str(path),
        device=device.name.split("/")[0] if on_gpu else "cpu",
        dtype=dtype_of(dtype, device),
        name=model,
        static=static,
    )
