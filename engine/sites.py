"""The devices there are, measured or virtual: which seats a layout takes, and how workers and models come to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple, Protocol

import torch

from engine.errors import UsageError
from engine.model.load import load
from engine.model.pair import Pair
from engine.model.remembered import Remembered
from engine.model.slots import LanguageModel
from engine.runtime.events import Device
from engine.runtime.jobs import Stage
from engine.runtime.process import ProcessWorker, Setup
from engine.runtime.sharing import Processor
from engine.runtime.thread import ThreadWorker
from engine.runtime.trace import Trace
from engine.runtime.virtual import VirtualWorker
from engine.runtime.worker import Worker
from engine.simulate.latency import Latency
from engine.simulate.profile import Profile
from engine.types import MOST_DRAFTERS, Layout, drafter_key

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
        if (
            there == 1 and layout.targets == 1 and layout.drafters <= 1
        ):  # both share it, each with a track of its own
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
        return _loader(self.pair, model, seat.devices[0])


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


def _loader(pair: Pair, model: str, device: Device) -> Loader:
    path = pair.models[model]
    on_gpu = device.kind == "cuda"
    return partial(
        load,
        str(path),
        device=device.name.split("/")[0] if on_gpu else "cpu",
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        name=model,
    )


@dataclass(frozen=True)
class Cloud:
    """The GPUs of a profile. A model on several of them is one worker, drawn as one device."""

    profile: Profile
    latency: Latency
    loaders: Mapping[str, Loader]
    processors: dict[str, Processor] = field(default_factory=dict[str, Processor])

    def seats(self, layout: Layout) -> dict[str, list[Seat]]:
        """Give drafters the first GPUs and targets those after."""
        drafter = self.latency.drafter
        if layout.drafters and drafter is None:
            raise UsageError(
                f"the pair {self.latency.pair} of the profile {self.profile.name} has no drafter; "
                "choose another pair, or a method that drafts without one"
            )
        each = {"drafter": drafter.gpus if drafter else 0, "target": self.latency.target.gpus}
        drafting, needed = layout.drafters * each["drafter"], layout.targets * each["target"]
        there = len(self.profile.gpus)
        if layout.ranks > 1:
            return self._grouped(layout.ranks)
        if layout.stages > 1:
            return staged(self._groups(0, there, 1), layout.stages)
        if layout.shared and max(drafting, needed) <= there:
            (target,) = self._groups(min(each["drafter"], there - needed), 1, each["target"])
            return {"drafter": [target._replace(name=f"{target.name}/drafter")], "target": [target]}
        if layout.turns and drafting <= needed <= there < drafting + needed:
            targets = self._groups(0, layout.targets, each["target"])
            return {"drafter": targets[: layout.drafters], "target": targets}
        if drafting + needed > there:
            raise UsageError(
                f"{layout.targets} target server(s) of {each['target']} GPU(s) and {layout.drafters} drafter(s) of "
                f"{each['drafter']} need {drafting + needed} GPUs; the profile {self.profile.name} has {there}"
            )
        first = max(drafting, min(each["drafter"], there - needed))
        return {
            "drafter": self._groups(0, layout.drafters, each["drafter"]),
            "target": self._groups(first, layout.targets, each["target"]),
        }

    def servers(self, drafters: int) -> int:
        """Return how many groups of GPUs for a target are left."""
        width = self.latency.drafter.gpus if self.latency.drafter else 0
        return max(0, len(self.profile.gpus) - drafters * width) // self.latency.target.gpus

    def drafters(self) -> int:
        """Return those that tokens come from; none where the profile has none. All take the time of the profile's."""
        return len(self.loaders) - 1 if self.latency.drafter else 0

    def ranks(self) -> int:
        """Return the GPUs there are; 1 where the profile does not say what sharing a drafter's layers takes."""
        drafter = self.latency.drafter
        if drafter is None or drafter.gpus > 1 or drafter.measured or not self.profile.hardware.collective_us:
            return 1
        return len(self.profile.gpus)

    def depth(self) -> int:
        """Return the layers of the profile's drafter."""
        return self.latency.drafter.layers if self.latency.drafter else 0

    def pipeline(self) -> Pipeline:
        """Return as many GPUs as the target takes anyway, at least 2.

        Raises:
            UsageError: The target's times are those of tensor parallelism, the drafter takes several GPUs, or the profile
                does not say what moving a KV cache takes.
        """
        target, drafter = self.latency.target, self.latency.drafter
        where = f"the pair {self.latency.pair} of the profile {self.profile.name}"
        if target.split == "tensor" and target.gpus > 1:
            raise UsageError(
                f"{where} has times of a target under tensor parallelism; a pipeline needs one split by layers: "
                "choose another pair, or pearl-4xA100"
            )
        if drafter is not None and drafter.gpus > 1:
            raise UsageError(
                f"{where} has a drafter on {drafter.gpus} GPUs; in a pipeline it takes one: choose another pair"
            )
        if self.latency.start_us is None:
            raise UsageError(
                f"{where} does not say step.move_ms, which moving a KV cache takes: choose another profile"
            )
        return Pipeline(max(2, target.gpus), len(self.profile.gpus), target.layers)

    def _grouped(self, ranks: int) -> dict[str, list[Seat]]:
        """Let the first GPUs draft together; the target takes its turns on as many as it is split over."""
        needed = max(ranks, self.latency.target.gpus)
        if needed > len(self.profile.gpus):
            raise UsageError(
                f"{ranks} GPUs are to share the drafter's layers and the target takes {self.latency.target.gpus}; "
                f"the profile {self.profile.name} has {len(self.profile.gpus)}"
            )
        devices = tuple(_group([gpu]).devices[0] for gpu in self.profile.gpus[:needed])
        lanes = (("drafter", ranks), ("target", self.latency.target.gpus))
        seat = Seat(f"{devices[0].name}..{devices[-1].name}/{ranks}", devices, lanes=lanes)
        return {"drafter": [seat], "target": [seat]}

    def _groups(self, first: int, count: int, width: int) -> list[Seat]:
        starts = range(first, first + count * width, width)
        return [_group(self.profile.gpus[start : start + width]) for start in starts]

    def hire(self, seat: Seat) -> Worker:
        """Start a virtual worker; those that sit on one device share its speed."""
        processor = self.processors.setdefault(seat.devices[0].name, Processor())
        return VirtualWorker(
            seat.name, seat.devices, self.latency, processor=processor, lanes=dict(seat.lanes)
        )

    def loader(self, model: str, seat: Seat) -> Loader:  # noqa: ARG002 - the same tokens everywhere
        """Return where a model's tokens come from."""
        return self.loaders[model]


def _group(gpus: Sequence[str]) -> Seat:
    """Return the seat of devices next to each other: `gpu0`, or `gpu1-2`."""
    name = gpus[0] if len(gpus) == 1 else f"{gpus[0]}-{gpus[-1].lstrip('gpu:c')}"
    return Seat(
        name, (Device(name, "", name.replace("gpu", "GPU ").replace("cpu:", "CPU core "), "virtual"),)
    )


def tokens_of(pair: Pair, tokens: str | Trace) -> tuple[Mapping[str, Loader], str]:
    """Return where a virtual run's tokens come from, and what to call it."""
    from engine.simulate.oracle import bernoulli_models, recorded_pair

    if tokens == "pair":
        torch.set_num_threads(1)
        here = Device("cpu:0", "", "", "cpu")
        return {m: _remembering(_loader(pair, m, here)) for m in pair.models}, f"{pair.name} pair"
    if isinstance(tokens, Trace):
        made, source = recorded_pair(tokens), f"recorded run {tokens.header.run_id}"
    else:
        avoid = {*pair.tokenizer.all_special_ids, *pair.eos}
        made, source = bernoulli_models(_rates(tokens), len(pair.tokenizer), avoid=avoid), tokens
    names = ("target", *map(drafter_key, range(len(made) - 1)))
    return {name: partial(_same, model) for name, model in zip(names, made, strict=True)}, source


def _same(model: LanguageModel, **_: object) -> LanguageModel:
    return model


def _remembering(loader: Loader) -> Loader:
    """Return a loader that loads once: all virtual workers ask one model, which computes nothing twice."""

    @cache
    def once() -> LanguageModel:
        model = loader()
        windows = getattr(getattr(model, "shape", None), "windows", ())
        return model if any(windows) else Remembered(model)

    return lambda **_: once()  # stages ask the whole model, too: their share of its time is the profile's


def _rates(tokens: str) -> tuple[float, ...]:
    """Return the acceptance rate of each drafter; one rate is that of as many drafters as one asks for."""
    kind, _, given = tokens.partition(":")
    try:
        rates = tuple(map(float, given.split(",")))
    except ValueError:
        rates = ()
    fits = kind == "bernoulli" and 1 <= len(rates) <= MOST_DRAFTERS and all(0 <= rate <= 1 for rate in rates)
    if not fits:
        raise UsageError(
            f"tokens is {tokens!r}; it must be pair or bernoulli:RATE with a rate from 0 to 1, or with one for each of "
            f"at most {MOST_DRAFTERS} drafters: bernoulli:0.6,0.9"
        )
    return rates * MOST_DRAFTERS if len(rates) == 1 else rates
