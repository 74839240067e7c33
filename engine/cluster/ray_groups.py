"""Devices that Ray reserves for a session, by placement groups.

A group has a bundle for each worker, or one for all ranks of a model that is split by tensors; a
bundle is always on one node. A group cannot grow, so workers that a later run adds get a further
group.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from engine.workers.ray.node import Node

RESERVE_S = 10.0
"""Seconds in which Ray must reserve devices: they are free, or another program just took them."""
RELEASE_S = 2.0
"""Seconds after the end of a session in which Ray must list its devices as free."""
NODE_LABEL = "ray.io/node-id"
"""The label by which Ray knows a node."""


class Bundle(NamedTuple):
    """Devices of one node that are reserved together."""

    node: Node
    resource: str
    """CPU or GPU."""
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.devices)} {self.resource}{on(self.node)}"


class Offer(NamedTuple):
    """A node and its resources by Ray's names."""

    node: Node
    total: dict[str, float]
    free: dict[str, float]
    """What nobody has reserved; a session's own reservations are not in it."""

    def state(self, resource: str) -> str:
        """Return how much of a resource is free, for messages."""
        return f"{self.free.get(resource, 0):g} of {self.total.get(resource, 0):g} {resource}{on(self.node)}"


class Place(NamedTuple):
    """Where a device is reserved."""

    group: Any
    number: int
    """Of the bundle in its group."""
    bundle: Bundle

    @property
    def name(self) -> str:
        """The group's id in `ray list placement-groups`, shortened, and the bundle's number."""
        return f"group {self.group.id.hex()[:8]}, bundle {self.number}"


class PlacementGroups:
    """The reservations of one session."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    @property
    def held(self) -> frozenset[str]:
        """Names of the reserved devices."""
        return frozenset(self._places)

    def place(self, device: str) -> Place:
        """Return where a device is reserved."""
        return self._places[device]

    def reserve(self, bundles: Sequence[Bundle]) -> bool:
        """Reserve devices on their nodes, all or none; return whether Ray did so in time."""
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group(
            [{bundle.resource: len(bundle.devices)} for bundle in bundles],
            name=f"specscope-{secrets.token_hex(8)}",  # a name can be used once
            bundle_label_selector=[{NODE_LABEL: bundle.node.id} for bundle in bundles],
        )
        try:
            reserved = group.wait(RESERVE_S)
        except BaseException:  # also Ctrl-C
            remove_placement_group(group)
            raise
        if not reserved:
            remove_placement_group(group)
            return False
        for i, bundle in enumerate(bundles):
            self._places |= dict.fromkeys(bundle.devices, Place(group, i, bundle))
        return True

    def remove(self) -> None:
        """Free all devices; Ray kills the actors on them.

        When this returns, the nodes list them as free, unless a node is dead or others took them.
        """
        from ray.util.placement_group import remove_placement_group

        before, end = free_by_node(), time.monotonic() + RELEASE_S
        groups = {place.group.id: place.group for place in self._places.values()}
        held = Counter((place.bundle.node.id, place.bundle.resource) for place in self._places.values())
        after = {
            (node, kind): before[node].get(kind, 0) + count
            for (node, kind), count in held.items()
            if node in before
        }
        self._places.clear()
        for group in groups.values():
            remove_placement_group(group)
        while after and time.monotonic() < end:
            free = free_by_node()
            after = {
                (node, kind): n for (node, kind), n in after.items() if free.get(node, {}).get(kind, 0) < n
            }
            time.sleep(0.02 if after else 0)


def free_by_node() -> dict[str, dict[str, float]]:
    """Return what nobody has reserved by the node's id.

    Ray's public functions sum it up over all nodes.
    """
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()


def on(node: Node) -> str:
    """Return ` on <node>`; nothing for the only node."""
    return f" on {node.name}" if node.name else ""
