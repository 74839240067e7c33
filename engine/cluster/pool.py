"""A pool: devices, and the rules by which a layout's workers get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.sizes import Split, model_size
from specscope.engine.cluster.assignment import (
    Assigned,
    Assignment,
    Loader,
    ModelPart,
    joined,
    ranks_of,
    single,
)
from specscope.engine.cluster.capacity import Need, check_capacity
from specscope.engine.cluster.memory import Memory, ModelBytes
from specscope.engine.cluster.options import Options
from specscope.engine.drafting.admission import Costs
from specscope.engine.errors import UsageError
from specscope.engine.layout import Colocated, LayerParallel, Layout, Pipelined, Separate
from specscope.engine.methods import Situation
from specscope.engine.simulate.latency import Latency
from specscope.engine.trace.events import Device
from specscope.engine.types import MOST_DRAFTERS
from specscope.engine.worker.worker import Worker


class Site(Protocol):
    """Where the devices are: this machine, a profile or a Ray cluster."""

    @property
    def devices(self) -> tuple[Device, ...]: ...

    @property
    def where(self) -> str:
        """Return the beginning of a sentence that says how many devices there are."""
        ...

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None:
        """Keep the devices for this cluster; SpecScopeError if another session has one."""
        ...

    def start(self, assignment: Assignment) -> Worker: ...

    def loader(self, model: str, assignment: Assignment) -> Loader: ...

    def close(self) -> None:
        """Free what the site holds; all workers have ended."""
        ...


Spread: TypeAlias = Callable[[int, int, Callable[[Sequence[Device]], Assigned]], Assigned]
"""(targets, drafters, on one node) -> assignments whose ranks are each on one node; where they do
not fit, those that the function gives for the devices of the largest node."""


@dataclass(frozen=True)
class Pool:
    """Devices, and how many of them a model takes.

    Models are loaded and timed on the devices, or a profile times them. With a profile a model on
    several devices has one worker, and models that take turns share it.
    """

    pair: Pair
    options: Options
    site: Site
    target: int = 1
    """Devices of a target, unless it is split by layers."""
    drafter: int = 1
    drafters: int = 0
    """Drafters at hand."""
    spans: tuple[range, ...] = ()
    """Layers of each device of a target that is split by layers; empty for a target that is not."""
    gathers: bool = True
    """Whether several devices can share a drafter's layers."""
    spread: Spread | None = None
    memory: Memory = field(default_factory=Memory)
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """For the header's environment."""
    profile: str = ""
    """The profile that times the models; empty if they are timed."""
    latency: Latency | None = None
    """The profile's models."""
    c: float = 0.0
    """T(target) / T(drafter) of the profile; 0 if it is still to be measured."""
    costs: Callable[[], Costs] | None = None
    """Times of the profile's forwards; None if they are still to be measured."""
    depth: int = 0
    """Layers of the drafter that the profile times."""
    layers: int = 0
    """Layers of the target that the profile times."""
    undrafted: str = ""
    """Why there is no drafter, where the profile has none."""
    unstaged: str = ""
    """Why the target cannot be split into stages, where the profile has no times for it."""

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.site.devices

    @property
    def dtype(self) -> torch.dtype:
        return self.options.dtype_on(self.devices[0])

    @property
    def ways(self) -> int:
        return len(self.spans) or self.target

    @property
    def base(self) -> Layout:
        """The layout that `specscope.open` loads: the target, and the drafter if there is one."""
        return Layout(Separate(drafters=min(1, self.drafters), turns=True))

    @property
    def ranks(self) -> int:
        """The largest number of devices that can share a drafter's layers, at least 1."""
        if not self.gathers or self.drafter > 1:
            return 1
        return self.ways if self.ways > 1 and not self.profile else len(self.devices)

    def servers(self, drafters: int) -> int:
        """Return the largest number of target servers beside this many drafters; may be 0."""
        if self.spread is None:
            return max(0, len(self.devices) - drafters * self.drafter) // self.ways
        most = len(self.devices) // self.ways
        return next((n for n in range(most, 0, -1) if self.spread(n, drafters, lambda _: {})), 0)

    def stages(self, asked: int, loaded: int = 0) -> int:
        """Return the number of devices that the target's layers are split over; `asked`, if not 0.

        By default two, the fewest, because every further stage costs a transfer, or as many as the
        target has. `loaded`: layers of the loaded target.

        Raises:
            UsageError: There are fewer devices or layers, or the profile cannot split a target.
        """
        if self.unstaged:
            raise UsageError(self.unstaged)
        devices, layers = len(self.devices), min(filter(None, (loaded, self.layers)), default=0)
        most = min(devices, layers or devices)
        limits = f"there are {devices} devices" + (f", and the target has {layers} layers" if layers else "")
        if most < 2:
            raise UsageError(
                f"a pipeline takes at least 2 devices and 2 layers; {limits}: choose another placement"
            )
        if asked and not 2 <= asked <= most:
            raise UsageError(
                f"stages is {asked}; it must be at least 2 and at most {most}: {limits}", "stages"
            )
        return asked or min(max(2, self.ways), most)

    def situation(
        self,
        context: int,
        loaded: int,
        c: Callable[[], float],
        stages: Callable[[int], int],
        head_levels: Callable[[str], int],
    ) -> Situation:
        """Return the facts that the methods' plans use; it plans no drafts.

        `loaded`: layers of the loaded drafter. A profile may time fewer.
        """
        servers = tuple(map(self.servers, range(max(self.drafters, MOST_DRAFTERS) + 1)))
        return Situation(
            context=context,
            depth=min(filter(None, (loaded, self.depth)), default=0),
            devices=self.ranks,
            drafters=self.drafters,
            servers=servers,
            c=c,
            stages=stages,
            head_levels=head_levels,
            planned=lambda settings, best: None,  # noqa: ARG005 - nothing is measured
        )

    def part(self, part: ModelPart) -> ModelBytes:
        """Return what a member of an assignment keeps of a model."""
        model, assignment, member = part
        device, dtype = part.place.devices[0], self.options.dtype_on(part.place.devices[0])
        layers = assignment.layers[member] if assignment.layers else part.stage and part.stage[:2]
        split = Split(layers, *((member, len(assignment.members)) if assignment.sharded else (0, 1)))
        size = model_size(self.pair.models[model], dtype, on_cpu=device.kind == "cpu", split=split)
        return ModelBytes(model, device, assignment.share(member) or "all", *size, dtype)

    def parts(self, models: Sequence[ModelPart]) -> list[ModelBytes]:
        """Return what models take; nothing with a profile, whose devices hold none."""
        return [] if self.profile else [*map(self.part, models)]

    def assign(self, layout: Layout) -> Assigned:
        """Give drafters the first devices and targets the next ones.

        Without a drafter the first target gets the second device, if there is one.

        Raises:
            UsageError: There are too few devices, or the layout does not go with a split model.
            OutOfMemory: A card of a profile has no room for its models.
        """
        assigned = self._assigned(layout)
        if self.latency is not None:
            check_capacity(self.latency, assigned, Need())
        return assigned

    def check_run(self, layout: Layout, need: Need) -> None:
        """Check that a profile's cards have room for a run of this size (OutOfMemory)."""
        if self.latency is not None:
            check_capacity(self.latency, self.assign(layout), need)

    def _assigned(self, layout: Layout) -> Assigned:
        if layout.needs_drafter and self.undrafted:
            raise UsageError(self.undrafted)
        match layout.arrangement:
            case Separate(targets, drafters) as separate if self.spread is not None:
                return self.spread(targets, drafters, partial(self._separate, separate))
            case Separate() as separate:
                return self._separate(separate, self.devices)
            case LayerParallel(ranks):
                return self._layer_parallel(ranks)
            case _ if self.options.is_sharded:
                raise UsageError(
                    "tp and drafter_tp do not go together with a co-located or pipelined placement: "
                    "leave them at 1, or choose another placement"
                )
            case Colocated():
                return self._colocated()
            case Pipelined(stages):
                return self._pipelined(stages)

    def _separate(self, separate: Separate, devices: Sequence[Device]) -> Assigned:
        targets, drafters, count = separate.targets, separate.drafters, len(devices)
        drafting, verifying = drafters * self.drafter, targets * self.ways
        needed = drafting + verifying
        if self.profile and separate.turns and drafting <= verifying <= count < needed:
            shared = self._servers("target", devices[:verifying])
            return {"drafter": shared[:drafters], "target": shared}
        if not self.profile and targets == 1 and drafters <= 1 and self.ways + self.drafter > count:
            return self._on_tracks(drafters, devices, separate.turns)
        asked = f"{targets} target server(s) and {drafters} drafter(s) need {needed} devices"
        if self.profile:
            asked = (
                f"{targets} target server(s) of {self.ways} GPU(s) and {drafters} drafter(s) of {self.drafter} "
                f"need {needed} GPUs"
            )
        self._check(needed, devices, asked)
        first = max(drafting, min(self.drafter, count - verifying))
        return {
            "drafter": self._servers("drafter", devices[:drafting]),
            "target": self._servers("target", devices[first:][:verifying]),
        }

    def _on_tracks(self, drafters: int, devices: Sequence[Device], turns: bool) -> Assigned:
        """Give the drafter the first devices, the target the last; shared ones have two tracks.

        On the only device models that take turns have one worker.
        """
        drafting, verifying = devices[: self.drafter], devices[len(devices) - self.ways :]
        shared = {*drafting} & {*verifying}

        def on_track(model: str, devices: Sequence[Device]) -> list[Device]:
            return [replace(d, name=f"{d.name}/{model}") if d in shared else d for d in devices]

        target = self._servers("target", on_track("target", verifying))
        if turns and len(drafting) == len(verifying) == len(shared) == 1:
            return {"drafter": target[:drafters], "target": target}
        drafter = self._servers("drafter", on_track("drafter", drafting))
        return {"drafter": drafter[:drafters], "target": target}

    def _servers(self, model: str, devices: Sequence[Device]) -> list[Assignment]:
        """Return the assignments of a model's workers on neighbouring devices."""
        width = self.drafter if model == "drafter" else self.ways
        groups = (devices[i : i + width] for i in range(0, len(devices), width))
        if self.profile:
            return [single(_as_one(group))._replace(cards=tuple(group)) for group in groups]
        if model == "target" and self.spans:
            return [pipeline(group, len(group), self.spans) for group in groups]
        return [*map(ranks_of, groups)]

    def _colocated(self) -> Assigned:
        if self.spans:
            raise UsageError(
                f"the target is split by layers over {self.ways} devices, and a co-located placement has one: "
                "choose another placement"
            )
        devices = self.devices
        if max(self.drafter, self.ways) > len(devices):
            return self._separate(Separate(), devices)  # raises: it needs even more
        first = min(self.drafter, len(devices) - self.ways)
        (target,) = self._servers("target", devices[first:][: self.ways])
        return {"drafter": [target._replace(name=f"{target.name}/drafter")], "target": [target]}

    def _layer_parallel(self, ranks: int) -> Assigned:
        """Draft on the first devices together; the target runs on its number of them in turn.

        A target on one device runs on the second one. One that is split by tensors has the same
        devices, as in EasySpec.
        """
        devices = self.devices
        if self.profile:
            return self._on_lanes(ranks, devices)
        if self.ways > 1:
            (target,) = self._separate(Separate(1, 0), devices)["target"]
            return {"drafter": [_together(target.members[:ranks])], "target": [target]}
        self._check(ranks, devices, f"{ranks} devices are to share the drafter's layers")
        members = [*map(single, devices[:ranks])]
        return {"drafter": [_together(members)], "target": [members[1]]}

    def _on_lanes(self, ranks: int, devices: Sequence[Device]) -> Assigned:
        asked = f"{ranks} GPUs are to share the drafter's layers and the target takes {self.ways}"
        self._check(max(ranks, self.ways), devices, asked)
        used = tuple(devices[: max(ranks, self.ways)])
        lanes = (("drafter", ranks), ("target", self.ways))
        both = Assignment(f"{used[0].name}..{used[-1].name}/{ranks}", used, lanes=lanes)
        return {"drafter": [both], "target": [both]}

    def _pipelined(self, stages: int) -> Assigned:
        if not self.spans:
            return pipelined(pipeline(self.devices, stages))
        if stages != self.ways:
            raise UsageError(
                f"stages is {stages}; memory has split the target over {self.ways} devices: leave stages at 0"
            )
        return pipelined(self._separate(Separate(), self.devices)["target"][0])

    def _check(self, needed: int, devices: Sequence[Device], asked: str) -> None:
        if needed > len(devices):
            more = f" ({devices[0].label} to {devices[-1].label}): ask for fewer, or use a virtual profile"
            room = f"{self.site.where} {len(devices)}{'' if self.profile else more}"
            raise UsageError(f"{asked}; {room}")

    def check_apart(self, layout: Layout, policy: str) -> None:
        """Raise UsageError if drafter and target would share a device under a policy."""
        try:
            assigned = self.assign(layout)
        except UsageError as error:
            raise UsageError(f"the policy {policy} needs a device for the drafter alone: {error}") from None
        drafting, verifying = (
            {device.name.partition("/")[0] for assignment in assigned[model] for device in assignment.devices}
            for model in ("drafter", "target")
        )
        if shared := sorted(drafting & verifying):
            raise UsageError(
                f"the policy {policy} needs a device for the drafter alone, and {shared[0]} holds the target, too: "
                "use a machine or a profile with more devices, or another policy"
            )


def pipeline(devices: Sequence[Device], stages: int, layers: tuple[range, ...] = ()) -> Assignment:
    if stages > len(devices):
        raise UsageError(
            f"the target is to be split over {stages} devices; there are {len(devices)}: ask for fewer stages"
        )
    return joined([*map(single, devices[:stages])], "pipeline", split=True, layers=layers)


def pipelined(target: Assignment) -> Assigned:
    """Draft on the last device of a split target and on its first one (PEARL, appendix G)."""
    return {"drafter": [target.members[-1], target.members[0]], "target": [target]}


def _together(members: Sequence[Assignment]) -> Assignment:
    return joined(members, "")._replace(name="+".join(member.name for member in members))


def _as_one(devices: Sequence[Device]) -> Device:
    """Return adjacent GPUs as one device: `gpu1-2`."""
    first, last = devices[0], devices[-1].name.lstrip("gpu:c")
    if len(devices) == 1:
        return first
    return replace(first, name=f"{first.name}-{last}", label=f"{first.label}-{last}")
