"""The processors of a Ray cluster's nodes as devices, and which of them a session may use.

Ray counts the processors of a node that are free; it does not number them. So the numbers of a
node's devices are places, not cores.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from engine.cluster.ray_groups import Offer
from engine.trace.events import Device
from engine.workers.ray.node import Node


class Slots:
    """The devices of one kind.

    Args:
        resource: Ray's name of the kind: CPU or GPU.
    """

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._known: dict[str, list[Device]] = {}
        """All devices of each node, by its id."""
        self._nodes: dict[str, Node] = {}
        """The node of each device, by its name."""
        self._usable: list[Device] = []

    @property
    def usable(self) -> tuple[Device, ...]:
        """Devices that this session holds or may reserve; those of a run keep their order."""
        return tuple(self._usable)

    def node(self, device: str) -> Node:
        """Return the node of a device."""
        return self._nodes[device]

    def by_node(self) -> list[list[Device]]:
        """Return the usable devices of each node."""
        found: dict[str, list[Device]] = {}
        for device in self._usable:
            found.setdefault(self._nodes[device.name].id, []).append(device)
        return list(found.values())

    def update(self, offers: Sequence[Offer], held: Collection[str]) -> None:
        """Number the devices of new nodes, and find those that may be used now.

        Args:
            offers: The nodes that answer.
            held: Names of the devices that this session has reserved.
        """
        self._number([offer for offer in offers if offer.node.id not in self._known])
        columns = [self._free(offer, held) for offer in offers]
        turns = [device for row in zip_longest(*columns) for device in row if device is not None]
        kept = [device for device in self._usable if device in turns]
        self._usable = kept + [device for device in turns if device not in kept]

    def _number(self, offers: Sequence[Offer]) -> None:
        """Number devices in turn: each node's first one, then each node's second one..."""
        kind = "cuda" if self._resource == "GPU" else "cpu"
        columns = [
            [(offer.node, i) for i in range(int(offer.total.get(self._resource, 0)))] for offer in offers
        ]
        for node, i in (place for row in zip_longest(*columns) for place in row if place is not None):
            label = " · ".join(filter(None, (node.name, f"{self._resource} {i}")))
            device = Device(f"{kind}:{len(self._nodes)}", "", label, kind)
            self._nodes[device.name] = node
            self._known.setdefault(node.id, []).append(device)

    def _free(self, offer: Offer, held: Collection[str]) -> list[Device]:
        """Return a node's devices without the first ones, as many as others have reserved."""
        devices = self._known.get(offer.node.id, [])
        free = int(offer.free.get(self._resource, 0))
        others = max(0, len(devices) - sum(device.name in held for device in devices) - free)
        taken = set([device.name for device in devices if device.name not in held][:others])
        return [device for device in devices if device.name not in taken]
