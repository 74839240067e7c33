"""The connection to a Ray cluster, its nodes, and the placement groups that reserve devices.

The cluster is an existing one, or one of this machine that ends with the connection. `ray` is
imported when a cluster is opened, because it is an optional package.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specscope.engine.cluster.ray_connect import (
    checked,
    disconnect,
    import_ray,
    job,
    own_signals,
    reason,
    silence,
    watched_head,
)
from specscope.engine.errors import SpecScopeError, UsageError, one_line
from specscope.engine.runtimes.process import Setup
from specscope.engine.runtimes.ray.worker import RayNode, RayWorker, reachable

EVERY_S = 1.0
"""Seconds between two checks of the workers and of the head."""
HEADLESS = 10
"""Checks without an answer of the head after which the connection is closed. Ray itself would end
this process after a minute, a playground included."""
STORE_BYTES = 256 << 20
"""Size of the object store of a cluster that is started here; Ray writes the rest to disk."""
LONGEST_FOLDER = 25
"""Characters; Ray's sockets are in this folder, and the path of a socket is limited to 107."""
RESERVE_S = 10.0
"""Seconds in which Ray must reserve devices: they are free, or another program just took them."""
RELEASE_S = 2.0
"""Seconds after the end of a session in which Ray must list its devices as free."""
_lock = threading.Lock()
_users: list[RayCluster] = []
"""Open clusters: one process has one connection, which the last of them closes."""


class Bundle(NamedTuple):
    """Devices of one node that are reserved together: one worker's, or those of all ranks."""

    node: RayNode
    resource: str
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.devices)} {self.resource}{on(self.node)}"


class DevicePlace(NamedTuple):
    """Where a device is reserved."""

    group: Any
    number: int
    bundle: Bundle

    @property
    def name(self) -> str:
        return f"group {self.group.id.hex()[:8]}, bundle {self.number}"


class RayCluster:
    """A connection to Ray, its nodes, and a thread that checks the workers.

    Args:
        address: `host:port` of a cluster's head, or `auto` for the cluster of this machine; None
            starts a cluster of this machine alone.
        cpus: Processors of a cluster that is started here.

    Raises:
        UsageError: `ray` is not installed, or the address is malformed.
        SpecScopeError: The cluster cannot be reached or started.
    """

    def __init__(self, address: str | None, cpus: int) -> None:
        self.places: dict[str, DevicePlace] = {}
        """Where each device is that this session has reserved, by the device's name."""
        self._workers: list[RayWorker] = []
        self._closing = threading.Event()
        self._folder = ""
        self._nodes: dict[str, RayNode] = {}
        """All nodes that were found, by Ray's id; a worker and its node share the clock."""
        self.address = checked(address)
        self._ray = import_ray(starts=self.address == "local")
        with _lock:
            if not self._ray.is_initialized():
                self._connect(cpus)
            elif not _users or _users[0].address != self.address:
                raise UsageError(
                    "this process is connected to a Ray cluster already; close it (ray.shutdown()), or "
                    "give the address of the open one"
                )
            self._head: str = self._ray.get_runtime_context().gcs_address
            _users.append(self)
        self._keeper = threading.Thread(
            target=self._check_workers, name="keeper of Ray's workers", daemon=True
        )
        self._keeper.start()

    def _connect(self, cpus: int) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        starts = self.address == "local"
        if starts:
            place = tempfile.gettempdir()
            folder = place if len(place) <= LONGEST_FOLDER else "/tmp"
            self._folder = tempfile.mkdtemp(prefix="specscope-ray-", dir=folder)
            options |= {"num_cpus": cpus, "include_dashboard": False, "_temp_dir": self._folder}
            options |= {"object_store_memory": STORE_BYTES}
        quiet = watched_head(self._folder) if starts else silence()
        try:
            with own_signals(), quiet, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._ray.init(address=self.address, job_config=job(), **options)
            # Ray has no setting that keeps its long report of a dead worker off standard output.
            self._ray._private.worker.print_to_stdstream = lambda *_, **__: None
        except BaseException as error:
            self._disconnect()
            if isinstance(error, SystemExit):  # Ray's handler raised it
                signal.raise_signal(signal.SIGTERM)
            if not isinstance(error, Exception):
                raise
            where = "start Ray" if starts else f"connect to Ray at {self.address}"
            raise SpecScopeError(f"cannot {where}: {one_line(error) if starts else reason(error)}") from None

    def nodes(self) -> list[RayNode]:
        """Return the nodes that answer, with their resources now; this machine's own node first.

        Nodes that join later get the next numbers.

        Raises:
            SpecScopeError: The head does not answer.
        """
        if not self._ray.is_initialized() or not self._head_answers():  # Ray would wait for a minute
            raise SpecScopeError(
                f"the head of the Ray cluster ({self._head}) does not answer; start the cluster again"
            )
        own = self._ray.get_runtime_context().get_node_id()
        alive = [each for each in self._ray.nodes() if each["Alive"]]
        alive.sort(key=lambda each: (each["NodeID"] != own, each["NodeManagerAddress"], each["NodeID"]))
        free, found = free_by_node(), set[str]()
        for entry in alive:
            key, address = entry["NodeID"], entry["NodeManagerAddress"]
            node = self._nodes.get(key) or RayNode(key, "", address, entry["NodeManagerPort"], key == own)
            if not node.answers():
                continue
            if key not in self._nodes and self.address != "local":
                node.name = f"node {len(self._nodes) + 1} ({address})"
            node.total, node.free = entry["Resources"], free.get(key, {})
            self._nodes[key] = node
            found.add(key)
        if own not in found:  # Ray would wait for it
            again = "the run" if self.address == "local" else "Ray here"
            raise SpecScopeError(f"Ray's node on this machine does not answer; start {again} again")
        return [node for key, node in self._nodes.items() if key in found]

    def _head_answers(self) -> bool:
        host, _, port = self._head.rpartition(":")
        return reachable(host, int(port))

    def reserve(self, bundles: Sequence[Bundle]) -> None:
        """Reserve devices on their nodes, all or none, by one more placement group."""
        from ray.util.placement_group import placement_group, remove_placement_group

        group = placement_group(
            [{bundle.resource: len(bundle.devices)} for bundle in bundles],
            name=f"specscope-{secrets.token_hex(8)}",  # a name can be used once
            bundle_label_selector=[{"ray.io/node-id": bundle.node.id} for bundle in bundles],
        )
        reserved = False
        try:
            reserved = group.wait(RESERVE_S)
        finally:  # also after Ctrl-C
            if not reserved:
                remove_placement_group(group)
        if not reserved:
            asked = {(bundle.node.id, bundle.resource) for bundle in bundles}
            free = [state(node, kind) for node in self.nodes() for key, kind in asked if key == node.id]
            raise SpecScopeError(
                f"Ray did not reserve {' and '.join(map(str, bundles))} in {RESERVE_S:g} s; free now: "
                f"{', '.join(free) or 'no node answers'}: another session or program uses the rest (`ray status`)"
            )
        for i, bundle in enumerate(bundles):
            self.places |= dict.fromkeys(bundle.devices, DevicePlace(group, i, bundle))

    def _free_devices(self) -> None:
        """Free all devices; Ray kills the actors on them.

        When this returns, the nodes list them as free, unless a node is dead or others took them.
        """
        from ray.util.placement_group import remove_placement_group

        held = Counter((place.bundle.node.id, place.bundle.resource) for place in self.places.values())
        before, end = free_by_node(), time.monotonic() + RELEASE_S
        for group in {place.group.id: place.group for place in self.places.values()}.values():
            remove_placement_group(group)
        self.places.clear()

        def waits(now: Mapping[str, Mapping[str, float]]) -> bool:
            return any(
                now.get(node, {}).get(kind, 0) < before[node].get(kind, 0) + count
                for (node, kind), count in held.items()
                if node in before
            )

        while waits(free_by_node()) and time.monotonic() < end:
            time.sleep(0.02)

    def start(self, setup: Setup, place: DevicePlace, *, cpus: int, gpus: int) -> Any:
        """Start the actor of a worker where its device is reserved.

        It takes these processors and GPUs of the reservation; Ray shows it the GPUs.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from specscope.engine.runtimes.ray.server import GROUPS, RayServer

        where = PlacementGroupSchedulingStrategy(place.group, place.number)
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": where}
        actor = self._ray.remote(concurrency_groups=GROUPS)(RayServer).options(**options)
        return actor.remote(setup, place.bundle.node.name)

    def watch(self, worker: RayWorker) -> None:
        self._workers.append(worker)

    def _check_workers(self) -> None:
        silent = 0
        while silent < HEADLESS and not self._closing.wait(EVERY_S):
            for worker in list(self._workers):
                worker.check()
            silent = 0 if self._head_answers() else silent + 1
        if silent == HEADLESS:  # end all jobs, and disconnect from a cluster without a head
            for worker in self._workers:
                worker.lose(f"lost the head of its cluster ({self._head})")
            with _lock:
                disconnect(self._ray)

    def close(self) -> None:
        """Disconnect; end a cluster that was started here, and remove its files."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._keeper.join()
        if self._ray.is_initialized() and self._head_answers():  # otherwise Ray has freed them
            self._free_devices()
        with _lock:
            _users.remove(self)
            if _users:
                _users[0]._folder = _users[0]._folder or self._folder
                return
            self._disconnect()

    def _disconnect(self) -> None:
        try:
            disconnect(self._ray)
        finally:  # also after Ctrl-C
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)


def free_by_node() -> dict[str, dict[str, float]]:
    """Return what nobody has reserved by the node's id; Ray's public functions give only sums."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node()


def state(node: RayNode, resource: str) -> str:
    return f"{node.free.get(resource, 0):g} of {node.total.get(resource, 0):g} {resource}{on(node)}"


def on(node: RayNode) -> str:
    return f" on {node.name}" if node.name else ""
