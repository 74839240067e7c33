"""This machine as a device pool: its GPUs, or its CPU cores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.memory import Memory, Part
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.pool import (
    Assignment,
    Loader,
    ModelPart,
    StageLimits,
    joined,
    parts_of,
    pipeline_assignments,
    single,
)
from specscope.engine.errors import UsageError
from specscope.engine.layout import Colocated, LayerParallel, Layout, Pipelined, Separate
from specscope.engine.runtimes.process import ProcessWorker, Setup
from specscope.engine.runtimes.thread import ThreadWorker
from specscope.engine.trace.events import Device
from specscope.engine.worker.worker import Worker


@dataclass(frozen=True)
class LocalDevices:
    """This machine: its GPUs, or its CPU cores."""

    pair: Pair
    options: Options
    devices: tuple[Device, ...]
    spans: tuple[range, ...] = ()
    """Layers of each device of a target that is split by layers; empty for a target that is not."""
    memory: Memory = field(default_factory=Memory)
    where: str = "this machine has"

    @property
    def ways(self) -> int:
        return len(self.spans) or self.options.tp

    @property
    def dtype(self) -> torch.dtype:
        return self.options.dtype_on(self.devices[0])

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first devices and targets the next ones.

        Without a drafter the first target gets the second device, if there is one.
        """
        match layout.arrangement:
            case Colocated() | Pipelined() if self.options.is_sharded:
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
                return {"drafter": [drafter], "target": [single(device)]}
            case LayerParallel(ranks):
                return self._layer_parallel(ranks)
            case Pipelined(stages) if self.spans:
                return self._pipelined(stages)
            case Pipelined(stages):
                return pipeline_assignments([*map(single, self.devices)], stages)
            case Separate(targets, drafters):
                return self._separate(targets, drafters)

    def _separate(self, targets: int, drafters: int) -> dict[str, list[Assignment]]:
        tp, drafter_tp, devices = self.ways, self.options.drafter_tp, self.devices
        if targets == 1 and drafters <= 1 and tp + drafter_tp > len(devices):
            return self._shared(drafters)
        needed = targets * tp + drafters * drafter_tp
        asked = f"{targets} target server(s) and {drafters} drafter(s) need {needed} devices"
        self._check_number(needed, asked)
        first = min(max(1, drafters) * drafter_tp, len(devices) - targets * tp)
        return {
            "drafter": [ranks_of(devices[i * drafter_tp :][:drafter_tp]) for i in range(drafters)],
            "target": [self._target(devices[first + i * tp :][:tp]) for i in range(targets)],
        }

    def _shared(self, drafters: int) -> dict[str, list[Assignment]]:
        """Give the drafter the first devices, the target the last; shared ones have two tracks."""
        count, tracks = len(self.devices), dict[str, tuple[Device, ...]]()
        spans = {"drafter": range(self.options.drafter_tp), "target": range(count - self.ways, count)}
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
        if len(self.spans) < 2:
            return ranks_of(devices)
        return joined([*map(single, devices)], "pipeline", split=True, layers=self.spans)

    def _pipelined(self, stages: int) -> dict[str, list[Assignment]]:
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
        self._check_number(ranks, f"{ranks} devices are to share the drafter's layers")
        members = [*map(single, self.devices[:ranks])]
        return {"drafter": [_together(members)], "target": [members[1]]}

    def _check_number(self, needed: int, asked: str) -> None:
        if needed > (count := len(self.devices)):
            raise UsageError(
                f"{asked}; {self.where} {count} ({self.devices[0].label} to "
                f"{self.devices[-1].label}): ask for fewer, or use a virtual profile"
            )

    def servers(self, drafters: int) -> int:
        return (len(self.devices) - drafters * self.options.drafter_tp) // self.ways

    def drafters(self) -> int:
        return len(self.pair.drafter_paths)

    def ranks(self) -> int:
        """Return the devices of a split target, else all; 1 if the drafter is split by tensors."""
        if self.options.drafter_tp > 1:
            return 1
        return self.ways if self.ways > 1 else len(self.devices)

    def depth(self) -> int:
        return 0

    def stage_limits(self) -> StageLimits:
        """Return two stages as usual: the fewest, because every further stage costs a transfer."""
        return StageLimits(len(self.spans) or 2, len(self.devices))

    def parts(self, models: Sequence[ModelPart]) -> list[Part]:
        return parts_of(self.pair, self.options, models)

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None:
        """Do nothing: the operating system shares devices out."""

    def start_worker(self, assignment: Assignment) -> Worker:
        device, threads = assignment.devices[0], self.options.threads
        if self.options.runtime == "local-thread":
            torch.set_num_threads(threads)
            return ThreadWorker(assignment.name, device, threads)
        pinned = device.kind == "cpu" and threads == 1
        core = int(device.name.split("/")[0].partition(":")[2]) if pinned else None
        return ProcessWorker(Setup(assignment.name, device, threads, core))

    def loader(self, model: str, assignment: Assignment) -> Loader:
        return loader_of(self.pair, model, assignment.devices[0], self.options)


def _together(members: Sequence[Assignment]) -> Assignment:
    return joined(members, "")._replace(name="+".join(member.name for member in members))


def ranks_of(devices: tuple[Device, ...]) -> Assignment:
    if len(devices) == 1:
        return single(devices[0])
    return joined([*map(single, devices)], "ranks", sharded=True)


def devices_of(device: str) -> tuple[Device, ...]:
    """Return this machine's devices of a kind (UsageError: it has none); `auto` prefers GPUs."""
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


def base_layout(pair: Pair) -> Layout:
    return Layout(Separate(drafters=int(pair.drafter_path is not None)))


def loader_of(pair: Pair, model: str, device: Device, options: Options, place: str = "") -> Loader:
    """Return a function that loads a model of a pair; `place` is torch's name of the device."""
    return partial(
        load,
        str(pair.models[model]),
        device=place or (device.name.split("/")[0] if device.kind == "cuda" else "cpu"),
        dtype=options.dtype_on(device),
        name=model,
        static=options.static_on(device),
    )
