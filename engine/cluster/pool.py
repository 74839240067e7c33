"""Protocol of a device pool: devices, their assignment to workers, and how models load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.sizes import Split, model_size
from specscope.engine.cluster.memory import Memory, Part
from specscope.engine.cluster.options import Options
from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Pipelined
from specscope.engine.methods import Situation
from specscope.engine.model.language import LanguageModel
from specscope.engine.trace.events import Device
from specscope.engine.types import MOST_DRAFTERS, drafter_key
from specscope.engine.worker.jobs import Stage
from specscope.engine.worker.worker import Worker

if TYPE_CHECKING:
    from specscope.engine.heads.find import HeadFile

Loader = Callable[..., LanguageModel]
"""Loads a model. The keyword argument `stage` = (number, count), or the stage's layers, loads one
stage of it, and `ranks` the part of one rank."""


class Assignment(NamedTuple):
    """Devices of one worker, or of several workers that work as one."""

    name: str
    devices: tuple[Device, ...]
    group: tuple[Assignment, ...] = ()
    """Assignments of a group's workers, the leader's first; empty for a single worker."""
    lanes: tuple[tuple[str, int], ...] = ()
    """(model, count): a model that keeps only the first `count` devices busy."""
    split: bool = False
    """Whether each worker of the group holds one stage of the model instead of all its layers."""
    sharded: bool = False
    """Whether each worker of the group holds a part of every layer."""
    layers: tuple[range, ...] = ()
    """Layers of each stage; empty for parts of equal size."""

    @property
    def members(self) -> tuple[Assignment, ...]:
        return self.group or (self,)

    @property
    def stages(self) -> tuple[Stage | None, ...]:
        """The stage of the model that each member holds; None for the whole model."""
        count = len(self.members)
        return tuple(Stage(i, count) if self.split else None for i in range(count))

    def share(self, member: int) -> str:
        """Return the part of the model that a member holds, for people; empty for all of it."""
        if self.sharded:
            return f"rank {member} of {len(self.group)}"
        if not self.layers:
            return f"stage {member + 1} of {len(self.group)}" if self.split else ""
        span = self.layers[member]
        return f"layers {span.start}-{span.stop - 1}" if len(span) > 1 else f"layer {span.start}"

    def devices_of(self, model: str) -> tuple[Device, ...]:
        return self.devices[: dict(self.lanes).get(model)]


class ModelPart(NamedTuple):
    """The model, or the part of it, that one member of an assignment holds."""

    model: str
    assignment: Assignment
    member: int

    @property
    def place(self) -> Assignment:
        return self.assignment.members[self.member]

    @property
    def stage(self) -> Stage | None:
        return self.assignment.stages[self.member]

    @property
    def name(self) -> str:
        return self.model if self.stage is None else self.stage.of(self.model)


def part_of(pair: Pair, dtype: torch.dtype, model: str, assignment: Assignment, member: int) -> Part:
    """Return what a member of an assignment keeps of a model of a pair."""
    stage, device = assignment.stages[member], assignment.members[member].devices[0]
    layers = assignment.layers[member] if assignment.layers else stage and stage[:2]
    split = Split(layers, *((member, len(assignment.members)) if assignment.sharded else (0, 1)))
    size = model_size(pair.models[model], dtype, on_cpu=device.kind == "cpu", split=split)
    return Part(model, device, assignment.share(member) or "all", *size, dtype)


def parts_of(pair: Pair, options: Options, models: Sequence[ModelPart]) -> list[Part]:
    return [part_of(pair, options.dtype_on(model.place.devices[0]), *model) for model in models]


class StageLimits(NamedTuple):
    """How many stages a pool offers a target whose layers are split over devices."""

    usual: int
    devices: int
    layers: int = 0
    """Layers of the target that the profile times; 0 if the loaded target itself is timed."""


class DevicePool(Protocol):
    """The devices at hand: assigns them to a layout's workers, starts workers, loads models."""

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Return the assignments of each model; UsageError if there are too few devices."""
        ...

    def servers(self, drafters: int) -> int:
        """Return the largest number of target servers beside this many drafters; may be 0."""
        ...

    def drafters(self) -> int: ...

    def ranks(self) -> int:
        """Return the largest number of devices that can share a drafter's layers, at least 1."""
        ...

    def depth(self) -> int:
        """Return the layers of the drafter that a profile times; 0 if times are measured."""
        ...

    def stage_limits(self) -> StageLimits:
        """Return the number of devices that the target's layers can be split over.

        Raises:
            UsageError: The profile has no times for a split target.
        """
        ...

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None:
        """Keep the devices for this cluster; SpecScopeError if another session has one."""
        ...

    @property
    def memory(self) -> Memory: ...

    def parts(self, models: Sequence[ModelPart]) -> list[Part]:
        """Return what models take; nothing where they are only simulated."""
        ...

    def start_worker(self, assignment: Assignment) -> Worker: ...

    def loader(self, model: str, assignment: Assignment) -> Loader: ...


def situation_of(
    pool: DevicePool,
    context: int,
    depth: int,
    c: Callable[[], float],
    stages: Callable[[int], int],
    head_levels: Callable[[str], int],
) -> Situation:
    """Return the facts about a pool that the methods' plans use; it plans no drafts."""
    drafters = pool.drafters()
    return Situation(
        context=context,
        depth=depth,
        devices=pool.ranks(),
        drafters=drafters,
        servers=tuple(pool.servers(n) for n in range(max(drafters, MOST_DRAFTERS) + 1)),
        c=c,
        stages=stages,
        head_levels=head_levels,
        planned=lambda settings, best: None,  # noqa: ARG005 - nothing is measured
    )


def check_apart(pool: DevicePool, layout: Layout, policy: str) -> None:
    """Raise UsageError if drafter and target would share a device under a policy."""
    try:
        assigned = pool.assign(layout)
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


def pipeline_assignments(assignments: Sequence[Assignment], stages: int) -> dict[str, list[Assignment]]:
    """Split the target over the first devices; draft on the last of them and on the first.

    Source: PEARL, appendix G.
    """
    if stages > len(assignments):
        raise UsageError(
            f"the target is to be split over {stages} devices; there are {len(assignments)}: "
            "ask for fewer stages"
        )
    target = joined(assignments[:stages], "pipeline", split=True)
    return {"drafter": [target.members[-1], target.members[0]], "target": [target]}


def single(device: Device) -> Assignment:
    return Assignment(device.name, (device,))


def joined(members: Sequence[Assignment], kind: str, **how: Any) -> Assignment:
    """Return several workers that work as one."""
    devices = tuple(device for member in members for device in member.devices)
    return Assignment(f"{members[0].name}..{members[-1].name}/{kind}", devices, tuple(members), **how)


def drafter_names(layout: Layout, count: int, head: HeadFile | None) -> tuple[str, ...]:
    """Return each drafting worker's name for its model; in a pipeline both names are the same."""
    if head is not None:
        return (head_name(head),) * count
    if isinstance(layout.arrangement, Pipelined):
        return (drafter_key(0),) * count
    return tuple(map(drafter_key, range(count)))


def head_place(target: Assignment, head: HeadFile) -> Assignment:
    """Return where a head drafts: on its target's devices, or on the last one of a split target."""
    if not target.split:
        return target
    head.check_split()
    return target.members[-1]


def head_name(head: HeadFile) -> str:
    return f"head {head.config.kind}"


def names_on_workers(
    assigned: Mapping[str, Sequence[Assignment]], drafters: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return worker's name -> the names of the models, or their parts, on it."""
    names: dict[str, tuple[str, ...]] = {}
    for model, assignment in models_on(assigned, drafters):
        for member in range(len(assignment.members)):
            part = ModelPart(model, assignment, member)
            names[part.place.name] = (*names.get(part.place.name, ()), part.name)
    return names


def labelled_devices(
    assigned: Mapping[str, Sequence[Assignment]], drafters: Sequence[str]
) -> tuple[Device, ...]:
    """Return the devices in natural order, with the models on each in its role and label."""
    names: dict[Device, dict[str, str]] = {}
    for model, assignment in sorted(models_on(assigned, drafters), key=lambda item: item[0]):
        role = "drafter" if model in drafters else model
        number = model.partition("drafter-")[2]
        for rank, device in enumerate(assignment.devices_of(role)):
            part = assignment.share(rank) if assignment.sharded or assignment.layers else ""
            names.setdefault(device, {}).setdefault(role, " ".join(filter(None, (role, number, part))))
    return tuple(
        replace(device, role="+".join(roles), label=f"{device.label} · {' and '.join(roles.values())}")
        for device, roles in sorted(names.items(), key=lambda item: _natural_key(item[0].name))
    )


def models_on(
    assigned: Mapping[str, Sequence[Assignment]], drafters: Sequence[str]
) -> Iterator[tuple[str, Assignment]]:
    for model, assignments in assigned.items():
        names = drafters if model == "drafter" else [model] * len(assignments)
        yield from zip(names, assignments, strict=True)


def _natural_key(name: str) -> list[str | int]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
