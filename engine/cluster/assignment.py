"""What a layout's workers get: devices and parts of models, and how they are named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from specscope.engine.layout import Layout, Pipelined
from specscope.engine.model.language import LanguageModel
from specscope.engine.trace.events import Device
from specscope.engine.types import drafter_key
from specscope.engine.worker.jobs import Stage

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
    cards: tuple[Device, ...] = ()
    """The GPUs of a profile that are one device."""

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


Assigned: TypeAlias = dict[str, list[Assignment]]
"""The assignments of `drafter` and `target`, one for each of their workers."""


def single(device: Device) -> Assignment:
    return Assignment(device.name, (device,))


def joined(members: Sequence[Assignment], kind: str, **how: Any) -> Assignment:
    """Return several workers that work as one."""
    devices = tuple(device for member in members for device in member.devices)
    return Assignment(f"{members[0].name}..{members[-1].name}/{kind}", devices, tuple(members), **how)


def ranks_of(devices: Sequence[Device]) -> Assignment:
    if len(devices) == 1:
        return single(devices[0])
    return joined([*map(single, devices)], "ranks", sharded=True)


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
    for part in parts_on(assigned, drafters):
        names[part.place.name] = (*names.get(part.place.name, ()), part.name)
    return names


def parts_on(assigned: Mapping[str, Sequence[Assignment]], drafters: Sequence[str]) -> list[ModelPart]:
    """Return the models of a layout, split ones part by part; `drafters` are names."""
    models = models_on(assigned, drafters)
    return [ModelPart(model, each, i) for model, each in models for i in range(len(each.members))]


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
