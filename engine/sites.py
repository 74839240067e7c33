"""The devices there are: which seats a layout takes, and how workers and models come to them. This machine as such a site.

The GPUs of a profile are another one, `engine/simulate/cloud.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import torch

from engine.errors import UsageError
from engine.model.load import load
from engine.model.pair import Pair
from engine.model.slots import LanguageModel
from engine.runtime.events import Device
from engine.runtime.jobs import Stage
from engine.runtime.process import ProcessWorker, Setup
from engine.runtime.thread import ThreadWorker
from engine.runtime.worker import Worker
from engine.types import Layout

Loader = Callable[..., LanguageModel]
"""Makes a model; `stage` may say which part of it, (number, count)."""


class Seat(NamedTuple):
    """Where a worker sits: one device, or several that work as one. The seat's name is the worker's."""

    name: str
    devices: tuple[Device, ...]
    members: tuple[Seat, ...] = ()
    """Of a group of workers: the seats of each, its leader's first."""
    lanes: tuple[tuple[str, int], ...] = ()
    """For models that do not keep all of the devices busy: how many, the first ones."""
    split: bool = False
    """Whether each member holds a part of the model's layers, rather than all of them."""

    @property
    def singles(self) -> tuple[Seat, ...]:
        """The seats of its workers."""
        return self.members or (self,)

    def of(self, model: str) -> tuple[Device, ...]:
        """Return the devices that a model keeps busy."""
        return self.devices[: dict(self.lanes).get(model)]

    @property
    def stages(self) -> tuple[Stage | None, ...]:
        """Which part of the model each of its workers holds; None for all of it."""
        count = len(self.singles)
        return tuple(Stage(i, count) if self.split else None for i in range(count))


class Pipeline(NamedTuple):
    """What a site offers a target that is split over its devices by layers."""

    usual: int
    """Stages where nobody says how many."""
    devices: int
    layers: int = 0
    """Those of the target that the times are of; 0 where that is the target itself."""


class Site(Protocol):
    """The devices there are: which seats a layout takes, and how workers and models come to them."""

    def seats(self, layout: Layout) -> dict[str, list[Seat]]:
        """Return the seats of each model.

        Raises:
            UsageError: The layout needs more devices than there are.
        """
        ...

    def servers(self, drafters: int) -> int:
        """Return how many target servers there is room for beside so many drafters; 0 for none."""
        ...

    def drafters(self) -> int:
        """Return how many different drafters there are."""
        ...

    def ranks(self) -> int:
        """Return how many devices may share a drafter's layers, at least 1."""
        ...

    def depth(self) -> int:
        """Return the layers of the drafter that the times are of; 0 where that is the drafter itself."""
        ...

    def pipeline(self) -> Pipeline:
        """Return over how many devices the target's layers can be split.

        Raises:
            UsageError: The site does not say how long that takes.
        """
        ...

    def hire(self, seat: Seat) -> Worker:
        """Start a worker."""
        ...

    def loader(self, model: str, seat: Seat) -> Loader:
        """Return how a worker makes a model."""
        ...


@dataclass(frozen=True)
class Here:
    """This machine: its GPUs, or its CPU cores."""

    pair: Pair
    runtime: str
    devices: tuple[Device, ...]
    threads: int

    def seats(self, layout: Layout) -> dict[str, list[Seat]]:
        """Give drafters the first devices and targets those after; the first target always the second device."""
        if layout.shared:
            device = self.devices[min(1, len(self.devices) - 1)]
            return {
                "drafter": [Seat(f"{device.name}/drafter", (device,))],
                "target": [Seat(device.name, (device,))],
            }
        there, needed = len(self.devices), layout.targets + layout.drafters
        if layout.ranks > 1:
            return self._grouped(layout.ranks)
        if layout.stages > 1:
            return staged([Seat(device.name, (device,)) for device in self.devices], layout.stages)
        if there == 1 and layout.targets == 1 and layout.drafters <= 1:
            # both share it, each with a track of its own
            parts = {
                m: replace(self.devices[0], name=f"{self.devices[0].name}/{m}") for m in ("drafter", "target")
            }
            seats = {m: [Seat(device.name, (device,))] for m, device in parts.items()}
            return seats if layout.drafters else {"target": seats["target"]}
        if needed > there:
            raise UsageError(
                f"{layout.targets} target server(s) and {layout.drafters} drafter(s) need {needed} devices; this machine "
                f"has {there} ({self.devices[0].label} to {self.devices[-1].label}): ask for fewer, or use a virtual profile"
            )
        seats = [Seat(device.name, (device,)) for device in self.devices]
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

    def _grouped(self, ranks: int) -> dict[str, list[Seat]]:
        """Let the first devices draft together; the target takes its turns on the second one."""
        if ranks > len(self.devices):
            raise UsageError(
                f"{ranks} devices are to share the drafter's layers; this machine has {len(self.devices)} "
                f"({self.devices[0].label} to {self.devices[-1].label}): ask for fewer, or use a virtual profile"
            )
        seats = tuple(Seat(device.name, (device,)) for device in self.devices[:ranks])
        group = Seat("+".join(seat.name for seat in seats), self.devices[:ranks], seats)
        return {"drafter": [group], "target": [seats[1]]}

    def hire(self, seat: Seat) -> Worker:
        """Start a process or a thread on the seat's device."""
        device = seat.devices[0]
        if self.runtime == "local-thread":
            torch.set_num_threads(self.threads)
            return ThreadWorker(seat.name, device, self.threads)
        pinned = device.kind == "cpu" and self.threads == 1
        core = int(device.name.split("/")[0].partition(":")[2]) if pinned else None
        return ProcessWorker(Setup(seat.name, device, self.threads, core))

    def loader(self, model: str, seat: Seat) -> Loader:
        """Return how a model of the pair is loaded."""
        return loader_of(self.pair, model, seat.devices[0])


def staged(seats: Sequence[Seat], count: int) -> dict[str, list[Seat]]:
    """Split the target over the first seats; draft on the last of them and on the first (PEARL, appendix G).

    Raises:
        UsageError: There are fewer devices.
    """
    if count > len(seats):
        raise UsageError(
            f"the target is to be split over {count} devices; there are {len(seats)}: ask for fewer stages"
        )
    members = tuple(seats[:count])
    devices = tuple(device for seat in members for device in seat.devices)
    whole = Seat(f"{members[0].name}..{members[-1].name}/pipeline", devices, members, split=True)
    return {"drafter": [members[-1], members[0]], "target": [whole]}


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
