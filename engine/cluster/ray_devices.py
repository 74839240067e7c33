"""The nodes of a Ray cluster as a site: each processor is a device, with an actor as its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

from engine.cluster.local_devices import LocalDevices, devices_of, dtype_of, ranks_of
from engine.cluster.placement import Placement
from engine.cluster.ray_cluster import RayCluster
from engine.cluster.site import Assignment, Loader, ModelPart, StageLimits
from engine.environment import processor
from engine.errors import UsageError
from engine.layout import Layout, Separate
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.trace.events import Device
from engine.workers.ray.node import Node
from engine.workers.ray.parcels import Parcels
from engine.workers.ray.worker import RayWorker
from engine.workers.transports.process import Setup

RESOURCES = {"auto": "CPU", "cpu": "CPU", "cuda": "GPU"}
"""Ray's name of each kind of device. GPUs must be asked for: with Ray they have never been used."""


@dataclass
class RayDevices:
    """The processors of the nodes, in turn: neighbours in this order are on different nodes."""

    pair: Pair
    cluster: RayCluster
    kind: str
    """auto, cpu or cuda."""
    threads: int = 1
    static: bool = False
    """As for `LocalDevices`."""
    dtype: str = "auto"
    """As for `LocalDevices`."""
    tp: int = 1
    """Devices of one node that split each target by tensors."""
    drafter_tp: int = 1
    """Devices of one node that split each drafter by tensors."""
    parcels: Parcels = field(default_factory=Parcels)

    def __post_init__(self) -> None:
        self.nodes = self.cluster.nodes()
        placed = dict(_devices(self.nodes, RESOURCES[self.kind]))
        if not placed:
            raise UsageError(
                f"device is {self.kind}, but the Ray cluster has no {RESOURCES[self.kind]} "
                f"({len(self.nodes)} node(s)); use another device or address"
            )
        self._node_of = {device.name: node for device, node in placed.items()}
        by_node: dict[str, list[Device]] = {}
        for device, node in placed.items():
            by_node.setdefault(node.id, []).append(device)
        self._by_node = list(by_node.values())
        self._layouts = LocalDevices(
            self.pair, "ray", tuple(placed), self.threads, tp=self.tp, drafter_tp=self.drafter_tp
        )
        self._busy = set[str]()
        self._groups: dict[tuple[str, str], str] = {}
        """The group in which a worker holds its part of a model."""

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first devices and targets the next ones, as on this machine.

        The devices of a split model are on one node.
        """
        if max(self.tp, self.drafter_tp) == 1 or not isinstance(layout.arrangement, Separate):
            return self._layouts.assign(layout)
        targets, drafters = layout.arrangement.targets, layout.arrangement.drafters
        found = self._spread(targets, drafters)
        found = found or replace(self._layouts, devices=tuple(self.largest)).assign(layout)
        for model, group in ((model, group) for model, groups in found.items() for group in groups):
            for member in group.members:
                if self._groups.setdefault((model, member.name), group.name) != group.name:
                    raise UsageError(
                        f"{member.name} holds a part of the {model} for other devices than this run needs; open "
                        "another cluster for it"
                    )
        return found

    def _spread(self, targets: int, drafters: int) -> dict[str, list[Assignment]] | None:
        """Return assignments of split models, the widest first, each to the node with most room.

        Devices for a drafter are kept free, so that all runs have the same ones for the target.
        None: they do not fit.
        """
        free = [list(devices) for devices in self._by_node]
        found: dict[str, list[Assignment]] = {"drafter": [], "target": []}
        groups = [("target", self.tp)] * targets + [("drafter", self.drafter_tp)] * max(1, drafters)
        for model, ways in sorted(groups, key=lambda group: -group[1]):
            room = max(free, key=len)
            if len(room) < ways:
                return None
            found[model].append(ranks_of(tuple(room[:ways])))
            del room[:ways]
        return {**found, "drafter": found["drafter"][:drafters]}

    @property
    def largest(self) -> list[Device]:
        """The devices of the node that has most."""
        return max(self._by_node, key=len)

    def servers(self, drafters: int) -> int:
        """Return the target servers that fit on the devices that drafters leave free."""
        if max(self.tp, self.drafter_tp) == 1:
            return self._layouts.servers(drafters)
        most = len(self._node_of) // self.tp
        return next((n for n in range(most, 0, -1) if self._spread(n, drafters) is not None), 0)

    def drafters(self) -> int:
        """Return the number of the pair's drafters."""
        return self._layouts.drafters()

    def ranks(self) -> int:
        """Return 1: devices that share layers need shared memory."""
        return 1

    def depth(self) -> int:
        """Return 0: times are measured."""
        return 0

    def stage_limits(self) -> StageLimits:
        """Return two stages as usual, as on this machine."""
        return self._layouts.stage_limits()

    def check_memory(self, loads: Sequence[ModelPart], held: Sequence[ModelPart]) -> None:
        """Do nothing: each node checks its own memory when it loads a model."""

    def free(self, device: Device, held: Sequence[ModelPart]) -> None:
        """Return None: the memory of other nodes is not measured."""

    def start_worker(self, assignment: Assignment) -> RayWorker:
        """Start an actor on the assigned device's node.

        Raises:
            UsageError: It would share a GPU.
        """
        device = assignment.devices[0]
        place, on_gpu = device.name.split("/")[0], device.kind == "cuda"
        shared, node = place in self._busy, self._node_of[place]
        if shared and on_gpu:
            raise UsageError(
                f"{device.label} has a worker already; with Ray a GPU has one only: use more GPUs"
            )
        self._busy.add(place)
        start = self.cluster.starter(node, cpus=int(not shared and not on_gpu), gpus=int(on_gpu))
        worker = RayWorker(Setup(assignment.name, device, self.threads, None), node, self.parcels, start)
        self.cluster.watch(worker)
        return worker

    def loader(self, model: str, assignment: Assignment) -> Loader:
        """Return a function that loads a model of the pair on the assigned device's node."""
        device = assignment.devices[0]
        return partial(
            load,
            str(self.pair.models[model]),
            device="cuda:0" if device.kind == "cuda" else "cpu",
            dtype=dtype_of(self.dtype, device),
            name=model,
            target=str(self.pair.target_path),
            static=self.static,
        )


def ray_placement(
    pair: Pair,
    base: Layout,
    address: str | None,
    *,
    device: str,
    threads: int,
    forward: str,
    dtype: str,
    tp: int,
    drafter_tp: int,
    check: Callable[[int, int, int], None],
) -> Placement:
    """Connect to Ray and load the pair on its nodes; for the arguments see `engine.open`.

    `base` is the layout to load; `check` checks the devices of a node, tp and drafter_tp.
    """
    if device not in RESOURCES:
        raise UsageError(f"there is no device {device!r}; choose auto, cpu or cuda")
    cluster = RayCluster(address, len(devices_of("cpu")))
    try:
        site = RayDevices(pair, cluster, device, threads, forward == "static", dtype, tp, drafter_tp)
        check(len(site.largest), tp, drafter_tp)
    except BaseException:
        cluster.close()
        raise
    settings = {"host": processor(), "threads": threads, "forward": forward, "dtype": dtype}
    split = {"tp": tp, "drafter_tp": drafter_tp} if max(tp, drafter_tp) > 1 else {}
    details = settings | split | {"nodes": len(site.nodes)}
    return Placement("ray", site, base, details=details, finish=cluster.close)


def _devices(nodes: Sequence[tuple[Node, dict[str, float]]], resource: str) -> Iterator[tuple[Device, Node]]:
    """Yield the devices with their nodes: each node's first one, then each node's second one..."""
    columns = [[(node, i) for i in range(int(found.get(resource, 0)))] for node, found in nodes]
    kind = "cuda" if resource == "GPU" else "cpu"
    turns = (place for row in zip_longest(*columns) for place in row if place is not None)
    for number, (node, i) in enumerate(turns):
        label = " · ".join(filter(None, (node.name, f"{resource} {i}")))
        yield Device(f"{kind}:{number}", "", label, kind), node
