"""This machine as a site: its GPUs, or its CPU cores."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial

import torch

from engine.cluster.site import Assignment, Loader, Pipeline, staged
from engine.errors import UsageError
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.trace.events import Device
from engine.types import Layout
from engine.workers.transports.process import ProcessWorker, Setup
from engine.workers.transports.thread import ThreadWorker
from engine.workers.worker import Worker


@dataclass(frozen=True)
class LocalDevices:
    """This machine: its GPUs, or its CPU cores."""

    pair: Pair
    runtime: str
    devices: tuple[Device, ...]
    threads: int

    def seats(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first devices and targets those after; the first target always the second device."""
        if layout.shared:
            device = self.devices[min(1, len(self.devices) - 1)]
            return {
                "drafter": [Assignment(f"{device.name}/drafter", (device,))],
                "target": [Assignment(device.name, (device,))],
            }
        there, needed = len(self.devices), layout.targets + layout.drafters
        if layout.ranks > 1:
            return self._grouped(layout.ranks)
        if layout.stages > 1:
            return staged([Assignment(device.name, (device,)) for device in self.devices], layout.stages)
        if there == 1 and layout.targets == 1 and layout.drafters <= 1:
            # both share it, each with a track of its own
            parts = {
                m: replace(self.devices[0], name=f"{self.devices[0].name}/{m}") for m in ("drafter", "target")
            }
            seats = {m: [Assignment(device.name, (device,))] for m, device in parts.items()}
            return seats if layout.drafters else {"target": seats["target"]}
        if needed > there:
            raise UsageError(
                f"{layout.targets} target server(s) and {layout.drafters} drafter(s) need {needed} devices; this machine "
                f"has {there} ({self.devices[0].label} to {self.devices[-1].label}): ask for fewer, or use a virtual profile"
            )
        seats = [Assignment(device.name, (device,)) for device in self.devices]
        first = max(min(1, there - 1), layout.drafters)
        return {"drafter": seats[: layout.drafters], "target": seats[first : first + layout.targets]}

    def servers(self, drafters: int) -> int:
        """Return the devices that are left."""
        return len(self.devices) - drafters

    def drafters(self) -> int:
        """Return those of the pair."""
        return len(self.pair.drafter_paths)

    def ranks(self) -> int:
        """Return the devices there are."""
        return len(self.devices)

    def depth(self) -> int:
        """Return 0: times are measured."""
        return 0

    def pipeline(self) -> Pipeline:
        """Return 2 as usual, the fewest that keep drafter and target apart: every border costs a hop."""
        return Pipeline(2, len(self.devices))

    def _grouped(self, ranks: int) -> dict[str, list[Assignment]]:
        """Let the first devices draft together; the target takes its turns on the second one."""
        if ranks > len(self.devices):
            raise UsageError(
                f"{ranks} devices are to share the drafter's layers; this machine has {len(self.devices)} "
                f"({self.devices[0].label} to {self.devices[-1].label}): ask for fewer, or use a virtual profile"
            )
        seats = tuple(Assignment(device.name, (device,)) for device in self.devices[:ranks])
        group = Assignment("+".join(seat.name for seat in seats), self.devices[:ranks], seats)
        return {"drafter": [group], "target": [seats[1]]}

    def start_worker(self, seat: Assignment) -> Worker:
        """Start a process or a thread on the seat's device."""
        device = seat.devices[0]
        if self.runtime == "local-thread":
            torch.set_num_threads(self.threads)
            return ThreadWorker(seat.name, device, self.threads)
        pinned = device.kind == "cpu" and self.threads == 1
        core = int(device.name.split("/")[0].partition(":")[2]) if pinned else None
        return ProcessWorker(Setup(seat.name, device, self.threads, core))

    def loader(self, model: str, seat: Assignment) -> Loader:
        """Return how a model of the pair is loaded."""
        return loader_of(self.pair, model, seat.devices[0])


def devices_of(device: str) -> tuple[Device, ...]:
    """Return this machine's devices: `cpu`, `cuda`, or with `auto` its GPUs where it has any.

    Raises:
        UsageError: There is no such kind of device, or none of it here.
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


def loader_of(pair: Pair, model: str, device: Device) -> Loader:
    """Return how a model of a pair is loaded on a device of this machine."""
    path = pair.models[model]
    on_gpu = device.kind == "cuda"
    return partial(
        load,
        str(path),
        device=device.name.split("/")[0] if on_gpu else "cpu",
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        name=model,
    )
