"""Names of workers' models, and the labels of devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.cluster.site import Assignment, ModelPart
from engine.layout import Layout, Pipelined
from engine.trace.events import Device
from engine.types import drafter_key

if TYPE_CHECKING:
    from engine.heads.find import HeadFile


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
    """Return the workers' name for a head: several kinds may be loaded beside one target."""
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
    """Yield (the worker's name for the model, assignment) pairs."""
    for model, assignments in assigned.items():
        names = drafters if model == "drafter" else [model] * len(assignments)
        yield from zip(names, assignments, strict=True)


def _natural_key(name: str) -> list[str | int]:
    """Return a sort key by numbers in the name: `cpu:2` before `cpu:10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
