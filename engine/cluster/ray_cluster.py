"""The connection to a Ray cluster: an existing one, or one of this machine that ends with it.

`ray` is imported when a cluster is opened, because it is an optional package.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from engine.cluster.ray_connect import checked, import_ray, own_signals, reason, silence
from engine.cluster.ray_groups import RESERVE_S, Bundle, Offer, PlacementGroups, free_by_node
from engine.cluster.ray_start import watched
from engine.errors import SpecScopeError, UsageError, one_line
from engine.workers.ray.node import Node, reachable
from engine.workers.ray.worker import RayWorker
from engine.workers.transports.process import Setup

EVERY_S = 1.0
"""Seconds between two checks of the workers and of the head."""
HEADLESS = 10
"""Checks without an answer of the head after which the connection is closed. Ray itself would end
this process after a minute, a playground included."""
STORE_BYTES = 256 << 20
"""Size of the object store of a cluster that is started here; Ray writes the rest to disk."""
LONGEST_FOLDER = 25
"""Characters; Ray's sockets are in this folder, and the path of a socket is limited to 107."""
_lock = threading.Lock()
_users: list[RayCluster] = []
"""Open clusters: one process has one connection, which the last of them closes."""


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
        self._workers: list[RayWorker] = []
        self._closing = threading.Event()
        self._folder = ""
        self._printer: Callable[..., None] | None = None
        self._nodes: dict[str, Node] = {}
        """All nodes that were found, by Ray's id; a worker and its node share the clock."""
        self.groups = PlacementGroups()
        where = checked(address)
        self._ray = import_ray(starts=where == "local")
        with _lock:
            if not self._ray.is_initialized():
                self._connect(where, cpus)
            elif not _users or _users[0].address != where:
                raise UsageError(
                    "this process is connected to a Ray cluster already; close it (ray.shutdown()), or "
                    "give the address of the open one"
                )
            self.address, self._head = where, self._ray.get_runtime_context().gcs_address
            _users.append(self)
        self._keeper = threading.Thread(target=self._check_workers, name="keeper of Ray's workers")
        self._keeper.daemon = True
        self._keeper.start()

    def _connect(self, address: str, cpus: int) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if address == "local":
            self._folder = _folder()
            quiet |= {
                "num_cpus": cpus,
                "include_dashboard": False,
                "object_store_memory": STORE_BYTES,
                "_temp_dir": self._folder,
            }
        try:
            starting = watched(self._folder) if self._folder else contextlib.nullcontext()
            with own_signals(), silence(address), starting, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._ray.init(address=address, **quiet)
            # Ray has no setting that keeps its long report of a dead worker off standard output.
            self._printer = _swap_printer(self._ray, lambda *_, **__: None)
        except BaseException as error:
            self._disconnect()
            if isinstance(error, SystemExit):  # Ray's handler raised it
                signal.raise_signal(signal.SIGTERM)
            if not isinstance(error, Exception):
                raise
            if address == "local":
                raise SpecScopeError(f"cannot start Ray: {one_line(error)}") from None
            raise SpecScopeError(f"cannot connect to Ray at {address}: {reason(error)}") from None

    def nodes(self) -> list[Offer]:
        """Return the nodes that answer, with their resources; this machine's own node first.

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
        free, offers = free_by_node(), dict[str, Offer]()
        for entry in alive:
            node = self._nodes.get(entry["NodeID"]) or _node(entry, entry["NodeID"] == own)
            if not node.answers():
                continue
            if node.id not in self._nodes and self.address != "local":
                node.name = f"node {len(self._nodes) + 1} ({node.address})"
            self._nodes[node.id] = node
            offers[node.id] = Offer(node, entry["Resources"], free.get(node.id, {}))
        if own not in offers:  # Ray would wait for it
            again = "the run" if self.address == "local" else "Ray here"
            raise SpecScopeError(f"Ray's node on this machine does not answer; start {again} again")
        return [offers[key] for key in self._nodes if key in offers]

    def _head_answers(self) -> bool:
        host, _, port = self._head.rpartition(":")
        return reachable(host, int(port))

    def reserve(self, bundles: Sequence[Bundle]) -> None:
        """Reserve devices on their nodes, all or none.

        Raises:
            SpecScopeError: Another program has some of them.
        """
        if self.groups.reserve(bundles):
            return
        asked = {(bundle.node.id, bundle.resource) for bundle in bundles}
        state = [offer.state(kind) for offer in self.nodes() for node, kind in asked if node == offer.node.id]
        raise SpecScopeError(
            f"Ray did not reserve {' and '.join(map(str, bundles))} in {RESERVE_S:g} s; free now: "
            f"{', '.join(state) or 'no node answers'}: another session or program uses the rest (`ray status`)"
        )

    def starter(self, node: Node, device: str, *, cpus: int, gpus: int) -> Callable[[Setup], Any]:
        """Return a function that starts the actor of a worker on a reserved device.

        Args:
            node: Its node.
            device: The device's name.
            cpus: Processors of its reservation that it takes.
            gpus: GPUs of its reservation that it takes, and Ray shows it.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from engine.workers.ray.server import RayServer

        place = self.groups.place(device)
        options = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_restarts": 0,
            "max_concurrency": 1000,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(place.group, place.number),
        }
        actor = self._ray.remote(RayServer).options(**options)
        return lambda setup: actor.remote(setup, node.name)

    def watch(self, worker: RayWorker) -> None:
        """Check a worker from now on, once a second."""
        self._workers.append(worker)

    def _check_workers(self) -> None:
        silent = 0
        while silent < HEADLESS and not self._closing.wait(EVERY_S):
            for worker in list(self._workers):
                worker.check()
            silent = 0 if self._head_answers() else silent + 1
        if silent == HEADLESS:
            self._give_up()

    def _give_up(self) -> None:
        """End all workers' jobs and disconnect from a cluster without a head."""
        for worker in self._workers:
            worker.lose(f"lost the head of its cluster ({self._head})")
        with _lock, own_signals():
            self._ray.shutdown()

    def close(self) -> None:
        """Disconnect; end a cluster that was started here, and remove its files."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._keeper.join()
        if self._ray.is_initialized() and self._head_answers():  # otherwise Ray has freed them
            self.groups.remove()
        with _lock:
            _users.remove(self)
            if _users:
                _users[0]._folder = _users[0]._folder or self._folder
                _users[0]._printer = _users[0]._printer or self._printer
                return
            self._disconnect()

    def _disconnect(self) -> None:
        try:
            with own_signals():
                self._ray.shutdown()
            if self._printer is not None:
                _swap_printer(self._ray, self._printer)
        finally:  # also after Ctrl-C
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)


def _swap_printer(ray: Any, printer: Callable[..., None]) -> Callable[..., None]:
    """Replace the function by which Ray prints what its nodes report; return the one before."""
    module = ray._private.worker
    before, module.print_to_stdstream = module.print_to_stdstream, printer
    return before


def _node(entry: Any, own: bool) -> Node:
    return Node(entry["NodeID"], "", entry["NodeManagerAddress"], entry["NodeManagerPort"], own)


def _folder() -> str:
    place = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="specscope-ray-", dir=place if len(place) <= LONGEST_FOLDER else "/tmp")
