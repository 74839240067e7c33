"""Protocol of a device pool: devices, their assignment to workers, and how models load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.errors import UsageError
from engine.layout import Layout, Pipelined
from engine.model.language import LanguageModel
from engine.trace.events import Device
from engine.types import drafter_key
from engine.worker.jobs import Stage
from engine.worker.worker import Worker

if TYPE_CHECKING:
    from engine.heads.find import HeadFile

Loader = Callable[..., LanguageModel]
"""Loads a model. The keyword argument `stage` = (number, count), or the stage's layers, loads one
stage of it, and `ranks` the part of one rank."""


class Assignment(NamedTuple):
    """Devices of one worker, or of several workers that work as one."""

    name: str
    """The worker's name."""
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
    """The workers' name."""
    assignment: Assignment
    member: int
    """Number of the member, from 0."""

    @property
    def place(self) -> Assignment:
        return self.assignment.members[self.member]

    @property
    def stage(self) -> Stage | None:
        """The stage that it is; None for a part that is no stage."""
        return self.assignment.stages[self.member]

    @property
    def name(self) -> str:
        return self.model if self.stage is None else self.stage.of(self.model)


class StageLimits(NamedTuple):
    """How many stages a pool offers a target whose layers are split over devices."""

    usual: int
    """Stages if the run does not choose."""
    devices: int
    layers: int = 0
    """Layers of the target that the profile times; 0 if the loaded target itself is timed."""


class Free(NamedTuple):
    """A memory with room for KV caches."""

    memory: str
    """Its name; devices of one memory have the same."""
    bytes: int | None
    """What is free beside the weights; None if only the worker can measure it."""
    limited: bool = False
    """Whether the bytes are from a limit, which counts no caches yet; else they are measured."""


class DevicePool(Protocol):
    """The devices at hand: assigns them to a layout's workers, starts workers, loads models."""

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Return the assignments of each model's workers.

        Raises:
            UsageError: The layout needs more devices than the pool has.
        """
        ...

    def servers(self, drafters: int) -> int:
        """Return the largest number of target servers beside this many drafters; may be 0."""
        ...

    def drafters(self) -> int:
        """Return the number of different drafters."""
        ...

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
        """Keep the devices of a layout's workers for this cluster, if others could take them.

        Args:
            assigned: The assignments of each model's workers.

        Raises:
            SpecScopeError: Another session or program has a device.
        """
        ...

    def check_memory(self, loads: Sequence[ModelPart], held: Sequence[ModelPart]) -> None:
        """Check that models fit into the memory that is free now.

        Args:
            loads: What is to be loaded.
            held: What is loaded already.

        Raises:
            ModelError: They do not; the message says what would fit.
        """
        ...

    def free(self, device: Device, held: Sequence[ModelPart]) -> Free | None:
        """Return the memory of a device that KV caches may take; None if it is not known.

        Args:
            device: A device of a worker.
            held: What is loaded.
        """
        ...

    def start_worker(self, assignment: Assignment) -> Worker:
        """Start a single worker."""
        ...

    def loader(self, model: str, assignment: Assignment) -> Loader:
        """Return a function that loads the model on the worker's device."""
        ...


def pipeline_assignments(assignments: Sequence[Assignment], stages: int) -> dict[str, list[Assignment]]:
    """Split the target over the first devices; draft on the last of them and on the first.

    Source: PEARL, appendix G.

    Raises:
        UsageError: There are fewer devices than stages.
    """
    if stages > len(assignments):
        raise UsageError(
            f"the target is to be split over {stages} devices; there are {len(assignments)}: "
            "ask for fewer stages"
        )
    members = tuple(assignments[:stages])
    devices = tuple(device for member in members for device in member.devices)
    name = f"{members[0].name}..{members[-1].name}/pipeline"
    return {
        "drafter": [members[-1], members[0]],
        "target": [Assignment(name, devices, members, split=True)],
    }


def drafter_names(layout: Layout, count: int, head: HeadFile | None) -> tuple[str, ...]:
    """Return each drafting worker's name for its model; in a pipeline both names are the same."""
    if head is not None:
        return (head_name(head),) * count
    if isinstance(layout.arrangement, Pipelined):
        return (drafter_key(0),) * count
    return tuple(map(drafter_key, range(count)))


def head_place(target: Assignment, head: HeadFile) -> Assignment:
    """Return where a head drafts: on its target's devices, or on the last one of a split target.

    Raises:
        UsageError: The target is split by layers, and the head reads states of inner layers.
    """
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
