"""The nodes of a Ray cluster as a site: each processor is a device, with an actor as its worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest

from engine.cluster.local_devices import LocalDevices, devices_of, dtype_of
from engine.cluster.placement import Placement
from engine.cluster.ray_cluster import RayCluster
from engine.cluster.site import Assignment, Loader, ModelPart, StageLimits
from engine.environment import processor
from engine.errors import UsageError
from engine.layout import Layout
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
        self._layouts = LocalDevices(self.pair, "ray", tuple(placed), self.threads)
        self._busy = set[str]()

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first devices and targets the next ones, as on this machine."""
        return self._layouts.assign(layout)

    def servers(self, drafters: int) -> int:
        """Return the target servers that fit on the devices that drafters leave free."""
        return self._layouts.servers(drafters)

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
    pair: Pair, base: Layout, address: str | None, device: str, threads: int, forward: str, dtype: str
) -> Placement:
    """Connect to Ray and load the pair on its nodes (arguments as for `engine.open`)."""
    if device not in RESOURCES:
        raise UsageError(f"there is no device {device!r}; choose auto, cpu or cuda")
    cluster = RayCluster(address, len(devices_of("cpu")))
    try:
        site = RayDevices(pair, cluster, device, threads, forward == "static", dtype)
    except BaseException:
        cluster.close()
        raise
    settings = {"host": processor(), "threads": threads, "forward": forward, "dtype": dtype}
    details = settings | {"nodes": len(site.nodes)}
    return Placement("ray", site, base, details=details, finish=cluster.close)


def _devices(nodes: Sequence[tuple[Node, dict[str, float]]], resource: str) -> Iterator[tuple[Device, Node]]:
    """Yield the devices with their nodes: each node's first one, then each node's second one..."""
    columns = [[(node, i) for i in range(int(found.get(resource, 0)))] for node, found in nodes]
    kind = "cuda" if resource == "GPU" else "cpu"
    turns = (place for row in zip_longest(*columns) for place in row if place is not None)
    for number, (node, i) in enumerate(turns):
        label = " · ".join(filter(None, (node.name, f"{resource} {i}")))
        yield Device(f"{kind}:{number}", "", label, kind), node
