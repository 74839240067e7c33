"""The nodes of a Ray cluster as a device pool: a processor is a device, an actor its worker.

Ray counts the processors of a node that are free; it does not number them. So the numbers of a
node's devices are places, not cores.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.assignment import Assigned, Assignment, Loader, ranks_of
from specscope.engine.cluster.local_devices import loader_of
from specscope.engine.cluster.memory import MACHINE, Memory, measured
from specscope.engine.cluster.occupancy import Reading, read_own
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.pool import Pool
from specscope.engine.cluster.ray_cluster import Bundle, RayCluster, state
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.runtimes.process import Setup
from specscope.engine.runtimes.ray.worker import RayNode, RayWorker, References
from specscope.engine.trace.events import Device
from specscope.engine.worker.worker import Worker

RESOURCES = {"auto": "CPU", "cpu": "CPU", "cuda": "GPU"}
"""Ray's name of each kind of device. GPUs must be asked for: with Ray they have never been used."""
FRESH_S = 1.0
"""Seconds after which the nodes and their free devices are read again."""


@dataclass
class RayNodes:
    """The processors of the nodes, in turn: neighbours in this order are on different nodes."""

    pair: Pair
    cluster: RayCluster
    options: Options
    references: References = field(default_factory=References)

    def __post_init__(self) -> None:
        self.where = "the Ray cluster has free"
        self.resource = RESOURCES[self.options.device]
        self._nodes: list[RayNode] = []
        self._read = -FRESH_S
        self._numbered: dict[str, list[Device]] = {}
        self._node_of: dict[str, RayNode] = {}
        self._usable: list[Device] = []
        self._workers: dict[str, RayWorker] = {}
        """Workers by name; they start with the reservation of their devices."""
        self._kept: dict[str, list[Assignment]] = {}
        """Assignments of each model whose devices are reserved."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this session holds or may reserve now; those of a run keep their order.

        Nodes that joined are counted, devices of other sessions are not.

        Raises:
            UsageError: No node has such devices.
            SpecScopeError: Others use all of them.
        """
        if time.monotonic() - self._read >= FRESH_S:
            self._nodes = self.cluster.nodes()
            self._number([node for node in self._nodes if node.id not in self._numbered])
            free = list(_in_turn(map(self._usable_on, self._nodes)))
            self._usable = [device for device in self._usable if device in free]
            self._usable += [device for device in free if device not in self._usable]
            self._read = time.monotonic()
        if not self._usable:
            raise self._shortage()
        return tuple(self._usable)

    def _number(self, nodes: Sequence[RayNode]) -> None:
        places = [[(node, i) for i in range(int(node.total.get(self.resource, 0)))] for node in nodes]
        for node, i in _in_turn(places):
            kind = "cuda" if self.resource == "GPU" else "cpu"
            label = " · ".join(filter(None, (node.name, f"{self.resource} {i}")))
            device = Device(f"{kind}:{len(self._node_of)}", "", label, kind)
            self._node_of[device.name] = node
            self._numbered.setdefault(node.id, []).append(device)

    def _usable_on(self, node: RayNode) -> list[Device]:
        """Return the devices of a node that this session holds, and as many others as are free."""
        devices = self._numbered.get(node.id, [])
        others = [device for device in devices if device.name not in self.cluster.places]
        taken = others[int(node.free.get(self.resource, 0)) :]
        return [device for device in devices if device not in taken]

    def _shortage(self) -> SpecScopeError:
        if not any(node.total.get(self.resource) for node in self._nodes):
            return UsageError(
                f"device is {self.options.device}, but the Ray cluster has no {self.resource} "
                f"({len(self._nodes)} node(s)); use another device or address"
            )
        free = ", ".join(state(node, self.resource) for node in self._nodes)
        return SpecScopeError(
            f"a worker needs 1 {self.resource}, and the Ray cluster has none free ({free}): close the session or "
            "program that uses them"
        )

    @property
    def count(self) -> int:
        return len(self._nodes)

    def spread(self, targets: int, drafters: int, alone: Callable[[Sequence[Device]], Assigned]) -> Assigned:
        """Return assignments whose ranks are each on one node (see `Pool.spread`)."""
        found = self._spread(targets, drafters) or alone(self.largest)
        for model, groups in found.items():
            kept = {
                member.name: group.name for group in self._kept.get(model, ()) for member in group.members
            }
            for group in groups:
                if any(kept.get(member.name, group.name) != group.name for member in group.members):
                    raise UsageError(
                        f"{group.members[0].name} holds a part of the {model} for other devices than this run needs; "
                        "open another cluster for it"
                    )
        return found

    def _spread(self, targets: int, drafters: int) -> dict[str, list[Assignment]] | None:
        """Return assignments of split models, the widest first, each to the freest node.

        Those that were reserved for earlier runs stay. Devices for a drafter are kept free, so that
        all runs have the same ones for the target. None: they do not fit.
        """
        wanted = {
            "target": (targets, self.options.tp),
            "drafter": (max(1, drafters), self.options.drafter_tp),
        }
        found = {model: self._kept.get(model, [])[:count] for model, (count, _) in wanted.items()}
        taken = {_place(m) for groups in found.values() for group in groups for m in group.members}
        free = [[d for d in devices if d.name not in taken] for devices in self._by_node()]
        further = [(m, ways) for m, (count, ways) in wanted.items() for _ in range(count - len(found[m]))]
        for model, ways in sorted(further, key=lambda group: -group[1]):
            largest = max(free, key=len, default=[])
            if len(largest) < ways:
                return None
            found[model] = [*found[model], ranks_of(tuple(largest[:ways]))]
            del largest[:ways]
        return {**found, "drafter": found["drafter"][:drafters]}

    def _by_node(self) -> list[list[Device]]:
        on = dict[str, list[Device]]()
        for device in self.devices:
            on.setdefault(self._node_of[device.name].id, []).append(device)
        return list(on.values())

    @property
    def largest(self) -> list[Device]:
        return max(self._by_node(), key=len)

    def check_ways(self) -> None:
        """Check that a node has the devices of a split model; its all-reduces stay on the node."""
        ways, most = max(self.options.tp, self.options.drafter_tp), len(self.largest)
        if ways > most and ways > 1:
            raise UsageError(
                f"a model is to be split over {ways} devices of one node, and no node of the Ray cluster has more than "
                f"{most} free {self.resource}: split it less, or free devices"
            )
        self.options.check_devices(most, drafter=self.pair.drafter_path is not None)

    @property
    def memory(self) -> Memory:
        return Memory(measure=self._free, name_of=self._memory_of)

    def _free(self, device: Device) -> int:
        own = Device(f"{device.kind}:0", "", "", device.kind)  # Ray shows a worker only its own GPU
        return self._workers[device.name].answer(partial(measured, own))

    def _memory_of(self, device: Device) -> str:
        node = self._node_of[device.name.split("/")[0]]
        return device.label if device.kind == "cuda" else node.name or MACHINE

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None:
        """Reserve the devices of new workers, and start the workers."""
        groups = [group for each in assigned.values() for group in each]
        members = {member.name: member for group in groups for member in group.members}
        self._workers = {name: worker for name, worker in self._workers.items() if not worker.ended}
        new = [member for name, member in members.items() if name not in self._workers]
        self._check_shared(new)
        if bundles := self._bundles(groups):
            self.cluster.reserve(bundles)
        for model, each in assigned.items():
            kept = self._kept.setdefault(model, [])
            kept += [group for group in each if group not in kept]
        for member in new:
            self._start(member)

    def _bundles(self, groups: Sequence[Assignment]) -> list[Bundle]:
        taken, bundles = {*self.cluster.places}, list[Bundle]()
        for group in groups:
            for members in [group.members] if group.sharded else [(m,) for m in group.members]:
                if names := tuple(name for name in map(_place, members) if name not in taken):
                    bundles.append(Bundle(self._node_of[names[0]], self.resource, names))
                    taken |= {*names}
        return bundles

    def _check_shared(self, new: Sequence[Assignment]) -> None:
        places = [*map(_place, new), *(name.split("/")[0] for name in self._workers)]
        for member in new if self.resource == "GPU" else ():
            if places.count(_place(member)) > 1:
                label = member.devices[0].label
                raise UsageError(f"{label} has a worker already; with Ray a GPU has one only: use more GPUs")

    def _start(self, member: Assignment) -> None:
        """Start a worker; the second one on a processor takes none of the reservation."""
        name, on_gpu = _place(member), self.resource == "GPU"
        first = all(other.split("/")[0] != name for other in self._workers)
        setup = Setup(member.name, member.devices[0], self.options.threads, None)
        place = self.cluster.places[name]
        actor = self.cluster.start(setup, place, cpus=int(first and not on_gpu), gpus=int(on_gpu))
        worker = RayWorker(setup, place.bundle.node, self.references, actor, place.name)
        self._workers[member.name] = worker
        self.cluster.watch(worker)

    def start(self, assignment: Assignment) -> RayWorker:
        return self._workers[assignment.name]

    def loader(self, model: str, assignment: Assignment) -> Loader:
        device = assignment.devices[0]
        return loader_of(self.pair, model, device, self.options, "cuda:0" if device.kind == "cuda" else "cpu")

    def close(self) -> None:
        self.cluster.close()


def ray_devices(pair: Pair, cluster: RayCluster, options: Options) -> Pool:
    """Return the pool of a cluster's nodes; devices that share layers would need shared memory."""
    nodes = RayNodes(pair, cluster, options)
    nodes.check_ways()
    widths = options.tp, options.drafter_tp, len(pair.drafter_paths)
    details = options.facts(nodes.devices[0]) | {"nodes": nodes.count}
    spread = nodes.spread if options.is_sharded else None
    return Pool(
        pair, options, nodes, *widths, gathers=False, spread=spread, memory=nodes.memory, details=details
    )


def _place(member: Assignment) -> str:
    return member.devices[0].name.split("/")[0]


def _in_turn(columns: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Yield the first item of each column, then the second of each..."""
    for row in zip_longest(*columns):
        yield from (item for item in row if item is not None)


def aligned_clocks(workers: Iterable[Worker], errors: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Compare the clocks of Ray's nodes with this process's; stamps are then shifted.

    `errors`: of each device's times on its own machine, in nanoseconds; 0 for CPU cores.

    Returns:
        For the header. `reserved`: the placement group and bundle of each device. `clocks`, by
        device: its node, the node's clock minus this one, and the most by which its times are
        wrong, in nanoseconds; left out if all workers are on this machine and read its clock. Empty
        without Ray, and without CUDA, whose streams have clocks of their own.
    """
    found = [worker for worker in workers if isinstance(worker, RayWorker)]
    nodes = {worker.node.id: worker for worker in found}
    for worker in nodes.values():
        worker.align()
    clocks: dict[str, Any] = {n: {"uncertainty_ns": error} for n, error in errors.items() if error}
    reserved = dict[str, str]()
    several = not all(worker.node.own for worker in found)
    for worker, name in ((worker, worker.devices[0].name) for worker in found):
        reserved[name] = worker.reserved
        if several:
            offset, uncertainty = worker.node.clock
            clocks[name] = {"node": worker.node.name, "offset_ns": offset}
            clocks[name]["uncertainty_ns"] = uncertainty + errors.get(name, 0)
    return ({"clocks": clocks} if clocks else {}) | ({"reserved": reserved} if reserved else {})


class NodeMeter:
    """Reads the devices of Ray workers, each in the worker's own process.

    A node does not say which core a worker uses, so on a CPU the load is that of the worker's
    process. On a GPU it is the card's, as on this machine; that has never run on a GPU.
    """

    def __init__(self, workers: Sequence[RayWorker], *_: object) -> None:
        self._workers = workers
        self._ask()  # the first call only starts the measurement

    def _ask(self) -> list[tuple[str, Future[Reading | None]]]:
        devices = [(worker, worker.devices[0]) for worker in self._workers]
        return [(device.name, worker.ask(partial(read_own, device.kind))) for worker, device in devices]

    def read(self) -> Iterator[Reading]:
        """Yield a reading of each worker that answers in a second."""
        for name, answer in self._ask():
            with contextlib.suppress(Exception):  # measuring must never end a run
                if (reading := answer.result(timeout=1)) is not None:
                    yield reading._replace(device=name)

    def close(self) -> None: ...
