"""This machine as a site: its GPUs, or its CPU cores."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial

import torch

from engine.cluster.site import Assignment, Loader, StageLimits, pipeline_assignments
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

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first devices and targets the next ones.

        Without a drafter the first target gets the second device, if there is one.
        """
        match layout.arrangement:
            case Colocated():
                device = self.devices[min(1, len(self.devices) - 1)]
                drafter = Assignment(f"{device.name}/drafter", (device,))
                return {"drafter": [drafter], "target": [Assignment(device.name, (device,))]}
            case LayerParallel(ranks):
                return self._layer_parallel(ranks)
            case Pipelined(stages):
                return pipeline_assignments(self._single(), stages)
            case Separate(targets, drafters):
                return self._separate(targets, drafters)

    def _single(self) -> list[Assignment]:
        """Return one worker's assignment for each device."""
        return [Assignment(device.name, (device,)) for device in self.devices]

    def _separate(self, targets: int, drafters: int) -> dict[str, list[Assignment]]:
        devices, needed = len(self.devices), targets + drafters
        if devices == 1 and targets == 1 and drafters <= 1:  # they share it, each with its own track
            models = ("drafter", "target") if drafters else ("target",)
            tracks = {m: replace(self.devices[0], name=f"{self.devices[0].name}/{m}") for m in models}
            return {model: [Assignment(track.name, (track,))] for model, track in tracks.items()}
        if needed > devices:
            raise UsageError(
                f"{targets} target server(s) and {drafters} drafter(s) need {needed} devices; this machine "
                f"has {devices} ({self.devices[0].label} to {self.devices[-1].label}): ask for fewer, "
                "or use a virtual profile"
            )
        assignments, first = self._single(), max(min(1, devices - 1), drafters)
        return {"drafter": assignments[:drafters], "target": assignments[first : first + targets]}

    def _layer_parallel(self, ranks: int) -> dict[str, list[Assignment]]:
        """Draft on the first devices together; the target runs on the second one in turn."""
        if ranks > len(self.devices):
            raise UsageError(
                f"{ranks} devices are to share the drafter's layers; this machine has "
                f"{len(self.devices)} ({self.devices[0].label} to {self.devices[-1].label}): "
                "ask for fewer, or use a virtual profile"
            )
        members = tuple(self._single()[:ranks])
        name = "+".join(member.name for member in members)
        return {
            "drafter": [Assignment(name, self.devices[:ranks], members)],
            "target": [members[1]],
        }

    def servers(self, drafters: int) -> int:
        """Return the devices that drafters leave free."""
        return len(self.devices) - drafters

    def drafters(self) -> int:
        """Return the number of the pair's drafters."""
        return len(self.pair.drafter_paths)

    def ranks(self) -> int:
        """Return the number of devices."""
        return len(self.devices)

    def depth(self) -> int:
        """Return 0: times are measured."""
        return 0

    def stage_limits(self) -> StageLimits:
        """Return two stages as usual: the fewest, because every further stage costs a transfer."""
        return StageLimits(2, len(self.devices))

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
    chosen = DTYPES[dtype] or (torch.bfloat16 if on_gpu else torch.float32)
    return partial(
        load,
        str(path),
        device=device.name.split("/")[0] if on_gpu else "cpu",
        dtype=chosen,
        name=model,
        target=str(pair.target_path),
        static=static,
    )
