"""The nodes of a Ray cluster as a site: each processor is a device, with an actor as its worker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from engine.cluster.caches import Free
from engine.cluster.local_devices import LocalDevices, dtype_of, ranks_of
from engine.cluster.memory import MACHINE, Memory, measured, part_of
from engine.cluster.ray_cluster import RayCluster
from engine.cluster.ray_groups import Bundle
from engine.cluster.ray_slots import Slots
from engine.cluster.site import Assignment, Loader, ModelPart, StageLimits
from engine.errors import SpecScopeError, UsageError
from engine.layout import Layout, Separate
from engine.pairs.load import load
from engine.pairs.pair import Pair
from engine.trace.events import Device
from engine.workers.ray.parcels import Parcels
from engine.workers.ray.worker import RayWorker
from engine.workers.transports.process import Setup

RESOURCES = {"auto": "CPU", "cpu": "CPU", "cuda": "GPU"}
"""Ray's name of each kind of device. GPUs must be asked for: with Ray they have never been used."""
FRESH_S = 1.0
"""Seconds after which the nodes and their free devices are read again."""


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
        self._slots = Slots(RESOURCES[self.kind])
        self._read = -FRESH_S
        self._workers: dict[str, RayWorker] = {}
        """Workers by name; they start with the reservation of their devices."""
        self._kept: dict[str, list[Assignment]] = {}
        """Assignments of each model whose devices are reserved."""
        self._check_devices()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this session holds or may reserve now.

        Nodes that joined are counted, devices of other sessions are not.
        """
        if time.monotonic() - self._read >= FRESH_S:
            self._offers = self.cluster.nodes()
            self._slots.update(self._offers, self.cluster.groups.held)
            self._read = time.monotonic()
        return self._slots.usable

    def _check_devices(self) -> None:
        """Check that a device is free.

        Raises:
            UsageError: The cluster has none of this kind.
            SpecScopeError: All are in use.
        """
        resource = RESOURCES[self.kind]
        if self.devices:
            return
        if not any(offer.total.get(resource) for offer in self._offers):
            raise UsageError(
                f"device is {self.kind}, but the Ray cluster has no {resource} "
                f"({len(self._offers)} node(s)); use another device or address"
            )
        state = ", ".join(offer.state(resource) for offer in self._offers)
        raise SpecScopeError(
            f"a worker needs 1 {resource}, and the Ray cluster has none free ({state}): close the session or program "
            "that uses them"
        )

    @property
    def nodes(self) -> int:
        """The number of nodes that answer."""
        return len(self._offers)

    @property
    def _layouts(self) -> LocalDevices:
        """Assignments as on one machine with these devices."""
        self._check_devices()
        return LocalDevices(
            self.pair,
            "ray",
            self.devices,
            self.threads,
            tp=self.tp,
            drafter_tp=self.drafter_tp,
            where="the Ray cluster has free",
        )

    def assign(self, layout: Layout) -> dict[str, list[Assignment]]:
        """Give drafters the first devices and targets the next ones, as on this machine.

        The devices of a split model are on one node.
        """
        if max(self.tp, self.drafter_tp) == 1 or not isinstance(layout.arrangement, Separate):
            return self._layouts.assign(layout)
        targets, drafters = layout.arrangement.targets, layout.arrangement.drafters
        found = self._spread(targets, drafters)
        found = found or replace(self._layouts, devices=tuple(self.largest)).assign(layout)
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
        """Return assignments of split models, the widest first, each to the node with most room.

        Those that were reserved for earlier runs stay. Devices for a drafter are kept free, so that
        all runs have the same ones for the target. None: they do not fit.
        """
        wanted = {"target": (targets, self.tp), "drafter": (max(1, drafters), self.drafter_tp)}
        found = {model: self._kept.get(model, [])[:count] for model, (count, _) in wanted.items()}
        taken = {_place(m) for groups in found.values() for group in groups for m in group.members}
        free = [[d for d in devices if d.name not in taken] for devices in self._by_node()]
        further = [(m, ways) for m, (count, ways) in wanted.items() for _ in range(count - len(found[m]))]
        for model, ways in sorted(further, key=lambda group: -group[1]):
            room = max(free, key=len)
            if len(room) < ways:
                return None
            found[model] = [*found[model], ranks_of(tuple(room[:ways]))]
            del room[:ways]
        return {**found, "drafter": found["drafter"][:drafters]}

    def _by_node(self) -> list[list[Device]]:
        """Return the usable devices of each node."""
        self._check_devices()
        return self._slots.by_node()

    @property
    def largest(self) -> list[Device]:
        """The devices of the node that has most."""
        return max(self._by_node(), key=len)

    def servers(self, drafters: int) -> int:
        """Return the target servers that fit on the devices that drafters leave free."""
        if max(self.tp, self.drafter_tp) == 1:
            return self._layouts.servers(drafters)
        most = len(self.devices) // self.tp
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

    def check_memory(self, loads: Sequence[ModelPart], held: Sequence[ModelPart]) -> None:  # noqa: ARG002 - measured
        """Check that models fit what is free on their nodes now; see `Site.check_memory`."""
        memories: dict[str, list[ModelPart]] = {}
        for part in loads:
            memories.setdefault(self._memory(part.place.devices[0]), []).append(part)
        for name, parts in memories.items():
            device = parts[0].place.devices[0]
            free, dtype = self._measured(device), dtype_of(self.dtype, device)
            memory = Memory(measure=lambda _, free=free: free, machine=name)
            memory.check([part_of(self.pair, dtype, *part) for part in parts], (), dtype)

    def free(self, device: Device, held: Sequence[ModelPart]) -> Free:  # noqa: ARG002 - measured
        """Return the memory of a device; each worker measures its own node's."""
        return Free(self._memory(device), None)

    def _measured(self, device: Device) -> int:
        """Return the free bytes of a device's memory, as its worker measures them."""
        own = Device(f"{device.kind}:0", "", "", device.kind)  # Ray shows a worker only its own GPU
        return self._workers[device.name].answer(partial(measured, own))

    def _memory(self, device: Device) -> str:
        """Return the name of a device's memory; the processors of a node share one."""
        node = self._slots.node(device.name.split("/")[0])
        return device.label if device.kind == "cuda" else node.name or MACHINE

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None:
        """Reserve the devices of new workers, and start the workers.

        Raises:
            UsageError: Two would share a GPU.
            SpecScopeError: Another session has just taken a device.
        """
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
        """Return a bundle for each worker whose device is not reserved, one for ranks together."""
        taken, bundles = {*self.cluster.groups.held}, list[Bundle]()
        for group in groups:
            for members in [group.members] if group.sharded else [(m,) for m in group.members]:
                names = tuple(name for name in map(_place, members) if name not in taken)
                if names:
                    bundles.append(Bundle(self._slots.node(names[0]), RESOURCES[self.kind], names))
                    taken |= {*names}
        return bundles

    def _check_shared(self, new: Sequence[Assignment]) -> None:
        """Check that no two workers are to share a GPU."""
        places = [*map(_place, new), *(name.split("/")[0] for name in self._workers)]
        for member in new if RESOURCES[self.kind] == "GPU" else ():
            if places.count(_place(member)) > 1:
                label = member.devices[0].label
                raise UsageError(f"{label} has a worker already; with Ray a GPU has one only: use more GPUs")

    def _start(self, member: Assignment) -> None:
        """Start a worker; the second one on a processor takes none of the reservation."""
        place = _place(member)
        node, on_gpu = self._slots.node(place), RESOURCES[self.kind] == "GPU"
        first = all(name.split("/")[0] != place for name in self._workers)
        start = self.cluster.starter(node, place, cpus=int(first and not on_gpu), gpus=int(on_gpu))
        setup = Setup(member.name, member.devices[0], self.threads, None)
        reserved = self.cluster.groups.place(place).name
        worker = RayWorker(setup, node, self.parcels, start, reserved)
        self._workers[member.name] = worker
        self.cluster.watch(worker)

    def start_worker(self, assignment: Assignment) -> RayWorker:
        """Return the worker of a reserved device."""
        return self._workers[assignment.name]

    def loader(self, model: str, assignment: Assignment) -> Loader:
        """Return a function that loads a model of the pair on the assigned device's node."""
        device = assignment.devices[0]
        return partial(
            load,
            str(self.pair.models[model]),
            device="cuda:0" if device.kind == "cuda" else "cpu",
            dtype=dtype_of(self.dtype, device),
            name=model,
            static=self.static,
        )


def _place(member: Assignment) -> str:
    """Return the name of a worker's device, which two workers may share."""
    return member.devices[0].name.split("/")[0]
