"""Ray without Ray: nodes as devices, connections, clocks, and data that travels by reference."""

import os
import socket
import sys
import time
from contextlib import suppress
from threading import Thread
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

import specscope
from specscope.app.main import main
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster import ray_cluster
from specscope.engine.cluster.assignment import ModelPart
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.ray_cluster import Bundle, DevicePlace, RayCluster
from specscope.engine.cluster.ray_connect import import_ray, reason, speaks_grpc
from specscope.engine.cluster.ray_devices import ray_devices
from specscope.engine.errors import ModelError, SpecScopeError, UsageError
from specscope.engine.layout import Layout, Separate
from specscope.engine.runtimes.process import Setup
from specscope.engine.runtimes.ray.server import RayServer
from specscope.engine.runtimes.ray.worker import NodeClock, RayNode, References, bytes_of, compare, with_bytes
from specscope.engine.trace.events import Device
from specscope.engine.types import Draft, DraftToken, Judgement, RowRef
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import (
    Connect,
    Import,
    Judge,
    JudgeAll,
    Prefill,
    Reply,
    Score,
    Stage,
    Stamp,
    Verified,
)
from tests.engine.worker.harness import chains

HELD = DevicePlace(SimpleNamespace(id=bytes(8)), 0, Bundle(RayNode("", "", "", 0, own=True), "CPU", ()))


class Nodes:
    """Nodes of a number of processors each, without Ray."""

    def __init__(self, *cpus, resource="CPU"):
        self._resource, self.reserved = resource, list[str]()
        self.start, self.watch, self.close = Mock(), Mock(), Mock()
        self.cpus, self._used, self.places = list(cpus), dict[int, int](), dict[str, DevicePlace]()

    def take(self, node, count):
        """Reserve processors for this and other sessions together."""
        self._used[node] = self._used.get(node, 0) + count

    def reserve(self, bundles):
        self.reserved += map(str, bundles)
        self.places |= {name: HELD for bundle in bundles for name in bundle.devices}

    def nodes(self):
        kind = self._resource
        return [
            RayNode(str(i), f"node {i}", "", 0, not i, {kind: n}, {kind: n - self._used.get(i, 0)})
            for i, n in enumerate(self.cpus)
        ]


def pool_of(nodes, **given):
    return ray_devices(Pair.find("bundled"), nodes, Options(runtime="ray", **given))


@pytest.mark.parametrize(
    ("cpus", "tp", "drafter_tp", "targets", "found"),
    [
        ((1, 1, 1), 1, 1, 2, {"drafter": [0], "target": [1, 2]}),
        ((2, 2), 1, 1, 3, {"drafter": [0], "target": [1, 0, 1]}),
        ((2, 1), 2, 1, 1, {"drafter": [1], "target": [0, 0]}),
        ((2, 2), 2, 2, 1, {"drafter": [1, 1], "target": [0, 0]}),
        ((4, 3), 2, 1, 2, {"drafter": [0], "target": [0, 0, 1, 1]}),
        ((2,), 2, 1, 1, {"drafter": [0], "target": [0, 0]}),
    ],
)
def test_servers_are_on_different_nodes_and_the_ranks_of_a_model_on_one(cpus, tp, drafter_tp, targets, found):
    pool = pool_of(Nodes(*cpus), tp=tp, drafter_tp=drafter_tp)
    assert pool.servers(1) >= targets or len(cpus) == 1
    assigned = pool.assign(Layout(Separate(targets)))
    on = {
        model: [int(d.label.split()[1]) if len(cpus) > 1 else 0 for group in groups for d in group.devices]
        for model, groups in assigned.items()
    }
    assert on == found
    if targets == 1:
        (alone,) = pool.assign(Layout(Separate(1, drafters=0)))["target"]
        assert alone == assigned["target"][0], "the target stays where it is"


def test_devices_that_another_split_uses_are_refused(monkeypatch):
    monkeypatch.setattr("specscope.engine.cluster.ray_devices.FRESH_S", 0)
    nodes = Nodes(2, 1)
    pool = pool_of(nodes, tp=2)
    (target,) = pool.assign(Layout(Separate(1)))["target"]
    pool.site._kept["target"] = [target]
    nodes.take(0, 2)
    nodes.take(1, 1)
    nodes.places |= dict.fromkeys((m.name for m in target.members), HELD)
    with pytest.raises(UsageError, match="cpu:0/target holds a part of the target for other devices"):
        pool.assign(Layout(Separate(1)))


def test_a_session_uses_what_others_leave_free_and_nodes_that_join(monkeypatch):
    """Two CPUs of node 0 are in use; it reserves one, another takes one more, a node joins."""
    monkeypatch.setattr("specscope.engine.cluster.ray_devices.FRESH_S", 0)
    nodes = Nodes(4, 1)
    nodes.take(0, 2)
    pool = pool_of(nodes)
    names = [device.label for device in pool.devices]
    assert names == ["node 0 · CPU 0", "node 1 · CPU 0", "node 0 · CPU 1"]
    nodes.places["cpu:4"] = HELD
    nodes.take(0, 2)
    assert [device.name for device in pool.devices] == ["cpu:1", "cpu:4"]
    nodes.cpus.append(1)
    nodes.take(1, 1)
    assert [device.label for device in pool.devices] == ["node 0 · CPU 3", "node 2 · CPU 0"]
    nodes.take(2, 1)
    nodes.places.clear()
    state = "0 of 4 CPU on node 0, 0 of 1 CPU on node 1, 0 of 1 CPU on node 2"
    with pytest.raises(SpecScopeError, match=rf"needs 1 CPU, and the Ray cluster has none free \({state}\)"):
        pool.assign(Layout(Separate(1)))


def test_models_that_do_not_fit_a_node_are_refused_with_its_name():
    """Both models go to the only free device; together they do not fit, each alone would."""
    names = pool_of(Nodes(2, 1))
    assert [names.memory.name(device) for device in names.devices] == ["node 0", "node 1", "node 0"]
    nodes = Nodes(1, 1)
    nodes.take(0, 1)
    pool = pool_of(nodes)
    assigned = pool.assign(Layout(Separate(1)))
    parts = [ModelPart(model, group, 0) for model, (group,) in assigned.items()]
    free = [sum(pool.part(part).weights for part in parts)]
    for part in parts:  # the workers measure it
        pool.site._workers[part.place.name] = SimpleNamespace(ended=False, answer=lambda _: free[0])
    pool.memory.check(pool.parts(parts), ())
    free[0] -= 1
    message = r"drafter and target: the weights take .* in the memory of node 1, of which .* are free"
    with pytest.raises(ModelError, match=message):
        pool.memory.check(pool.parts(parts), ())


def test_a_worker_that_ended_is_replaced_on_its_reserved_device(monkeypatch):
    """Workers are stand-ins: real ones import Ray, which then keeps its first token for good."""
    stand_in = "specscope.engine.cluster.ray_devices.RayWorker"
    monkeypatch.setattr(stand_in, lambda *_: SimpleNamespace(ended=False))
    nodes = Nodes(1, 1)
    nodes.places |= {"cpu:0": HELD, "cpu:1": HELD}
    pool = pool_of(nodes)
    assigned = pool.assign(Layout(Separate(1)))

    def started():
        pool.site.reserve(assigned)
        return [pool.site.start(assigned[model][0]) for model in ("drafter", "target")]

    drafter, target = started()
    assert [*map(id, started())] == [id(drafter), id(target)]
    drafter.ended = True
    again, kept = started()
    assert (again is drafter, kept is target) == (False, True)


def test_a_split_wider_than_every_node_is_refused_with_what_is_free(monkeypatch):
    nodes = Nodes(2, 4)
    nodes.take(1, 1)
    monkeypatch.setattr("specscope.engine.cluster.open.RayCluster", lambda *_: nodes)
    message = "split over 4 devices of one node, and no node of the Ray cluster has more than 3 free CPU"
    with pytest.raises(UsageError, match=message):
        specscope.open(runtime="ray", tp=4)
    nodes.close.assert_called_once()


@pytest.mark.parametrize(
    ("counts", "tp", "kind", "bundles"),
    [
        ((1, 1), 1, "cpu", ["1 CPU on node 0", "1 CPU on node 1"]),
        ((2, 1), 2, "cpu", ["1 CPU on node 1", "2 CPU on node 0"]),
        ((2, 2), 2, "cuda", ["1 GPU on node 1", "2 GPU on node 0"]),
        ((1,), 1, "cpu", ["1 CPU on node 0"]),
    ],
)
def test_a_worker_or_all_ranks_of_a_split_model_have_a_bundle(counts, tp, kind, bundles):
    resource = "GPU" if kind == "cuda" else "CPU"
    nodes = Nodes(*counts, resource=resource)
    pool = pool_of(nodes, device=kind, tp=tp)
    for _ in range(2):
        pool.site.reserve(pool.assign(Layout(Separate(1))))
        assert sorted(nodes.reserved) == bundles, "reserved once"
    taken = sum(call.kwargs[f"{resource.lower()}s"] for call in nodes.start.call_args_list)
    assert taken == sum(int(bundle[0]) for bundle in bundles)


def test_two_workers_never_share_a_gpu():
    pool = pool_of(Nodes(1, resource="GPU"), device="cuda")
    with pytest.raises(UsageError, match="GPU 0 has a worker already; with Ray a GPU has one only"):
        pool.site.reserve(pool.assign(Layout(Separate(1))))
    assert not pool.site.cluster.reserved


HEAD, OWN = "10.0.0.1:6379", {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "NodeManagerPort": 1}


class FakeRay:
    """Two nodes that Ray believes alive; `down` has those whose ports take no connections."""

    def __init__(self):
        self.connected, self.down = False, set[tuple[str, int]]()
        self._private = SimpleNamespace(worker=SimpleNamespace(print_to_stdstream=print))

    def init(self, **_):
        self.connected = True

    def shutdown(self):
        self.connected = False

    def is_initialized(self):
        return self.connected

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=HEAD, get_node_id=lambda: "a")

    def nodes(self):
        other = OWN | {"NodeID": "b", "NodeManagerAddress": "10.0.0.2"}
        return [{**node, "Alive": True, "Resources": {"CPU": 1}} for node in (OWN, other)]

    def reachable(self, host, port):
        return (host, port) not in self.down


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(ray_cluster, "import_ray", lambda *, starts: fake)
    monkeypatch.setattr(ray_cluster, "checked", lambda address: address)
    monkeypatch.setattr(ray_cluster, "free_by_node", dict)
    monkeypatch.setattr(RayCluster, "_free_devices", lambda _: None)
    monkeypatch.setattr(ray_cluster, "reachable", fake.reachable)
    monkeypatch.setattr("specscope.engine.runtimes.ray.worker.reachable", fake.reachable)
    monkeypatch.setattr(ray_cluster, "EVERY_S", 0.005)
    return fake


def await_checks(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_dead_head_ends_jobs_and_the_connection_before_ray_ends_this_process(ray):
    cluster, worker = RayCluster(HEAD, 1), Mock()
    cluster.watch(worker)
    assert [node.name for node in cluster.nodes()] == ["node 1 (10.0.0.1)", "node 2 (10.0.0.2)"]
    ray.down.add(("10.0.0.1", 6379))
    await_checks(lambda: not ray.connected)
    worker.lose.assert_called_once_with(f"lost the head of its cluster ({HEAD})")
    assert worker.check.call_count >= ray_cluster.HEADLESS
    ray.down.clear()  # the head is back; this connection is not
    with pytest.raises(SpecScopeError, match=r"head of the Ray cluster \(10\.0\.0\.1:6379\) does not answer"):
        cluster.nodes()
    cluster.close()
    again = RayCluster(HEAD, 1)
    assert len(again.nodes()) == 2
    again.close()


def test_a_head_that_is_silent_for_a_moment_ends_nothing(ray):
    cluster, worker, silent = RayCluster(HEAD, 1), Mock(), iter([False] * (ray_cluster.HEADLESS - 1))
    cluster._head_answers = lambda: next(silent, True)
    cluster.watch(worker)
    await_checks(lambda: worker.check.call_count >= 2 * ray_cluster.HEADLESS)
    assert (ray.connected, worker.lose.call_count) == (True, 0)
    cluster.close()


def test_without_its_own_node_a_session_ends_at_once_and_without_another_one_it_goes_on(ray):
    cluster = RayCluster(HEAD, 1)
    ray.down.add(("10.0.0.2", 1))
    assert [node.own for node in cluster.nodes()] == [True]
    ray.down.add(("10.0.0.1", 1))
    with pytest.raises(SpecScopeError, match="Ray's node on this machine does not answer; start Ray here"):
        cluster.nodes()
    cluster.close()


def test_ray_is_imported_without_its_handler_of_sigterm_which_aborts_a_playground(monkeypatch):
    name, fake = "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", SimpleNamespace()
    monkeypatch.setattr(os, "environ", {key: value for key, value in os.environ.items() if key != name})
    monkeypatch.setitem(sys.modules, "ray", fake)
    assert import_ray(starts=False) is fake
    assert os.environ[name] == "1"
    os.environ[name] = "0"
    import_ray(starts=False)
    assert os.environ[name] == "0", "the user's choice stays"


def test_the_fastest_round_trip_gives_a_clock_and_its_error():
    """The other clock is 5,000 ahead; trips take 2,000 there, 400 back; the fastest 100 and 60."""
    now, trips = [0], iter([(2000, 400)] * 7 + [(100, 60)] + [(2000, 400)] * 8)

    def there():
        out, back = next(trips)
        now[0] += out + back
        return now[0] - back + 5000

    clock = compare(there, lambda: now[0])
    assert clock == (5020, 80)
    stamp = Stamp("verify", 6020, 7020, 1, 0)
    reply = clock.local(Reply(None, (stamp,), Verified(Judgement((), 1, "plain", (), ()), (stamp,))))
    assert reply.judged.stamps == reply.stamps
    assert [(stamp.start, stamp.end) for stamp in reply.stamps] == [(1000, 2000)]
    assert NodeClock().local(reply) is reply


def test_rows_and_bytes_travel_by_reference_only():
    """A message has the places of the rows of q that its job reads, and no bytes."""
    references = References()
    references.put("cpu:0", chains("drafter", (), (2,), sampled=True, rows=((5, 2),)), "q")
    tokens = tuple(DraftToken(1, i - 1, RowRef("cpu:0", row)) for i, row in enumerate((5, 2)))
    judge = Judge(1, Draft(tokens), bonus=True, skip=0)
    places = ((("cpu:0", 5), 0, 0), (("cpu:0", 2), 0, 1))
    for job in (judge, Score("target", (), (), 1, judges=(judge,)), JudgeAll((judge,))):
        assert references.pack(job) == (job, places, ["q"])
    for job in (Import("target", (), 0, "kv"), Score("target", (), (), 1, stage=Stage(1, 2, "kv"))):
        packed, _, found = references.pack(job)
        assert (bytes_of(packed), found) == (..., ["kv"])
        assert bytes_of(with_bytes(packed, b"rows")) == b"rows"


@pytest.mark.parametrize(
    ("reply", "speaks"), [(bytes((0, 0, 6, 4, 0, 0, 0, 0, 0)), True), (b"HTTP/1.1 400 Bad Request", False)]
)
def test_only_a_server_of_grpc_is_taken_for_rays_head(reply, speaks, capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with suppress(OSError):  # the server is closed
                while True:
                    with server.accept()[0] as connection, suppress(OSError):
                        connection.recv(1000)
                        connection.sendall(reply)

        Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        assert speaks_grpc("127.0.0.1", port) is speaks
        if not speaks:
            place = ["--runtime", "ray", "--address", f"127.0.0.1:{port}", "--db", str(tmp_path / "runs.db")]
            assert main(["run", "--method", "speculative", "--prompt", "Hi", *place]) == 1
            error = (
                f"specscope: what answers at 127.0.0.1:{port} is not the head of a Ray cluster; give the port"
            )
            assert capsys.readouterr().err.startswith(error)
        server.shutdown(socket.SHUT_RDWR)


def test_a_cluster_with_other_versions_is_not_taken_for_one_with_a_token():
    mismatch = reason(RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.59.0\n"))
    assert mismatch == (
        "Version mismatch: The cluster was started with: Ray: 2.59.0; install the cluster's versions here"
    )
    assert "set RAY_AUTH_MODE=token" in reason(ConnectionError("Failed to connect"))


@pytest.fixture
def server(monkeypatch):
    """The second of two ranks: only the first one, `cpu:0`, has rows of q."""
    device = Device("cpu:1", "", "CPU 1", "cpu")
    made = RayServer(Setup("cpu:1", device, torch.get_num_threads(), None), "node 1")
    made.handle(0, Connect((("cpu:0", "", (8, 4)),)), (), ())
    monkeypatch.setattr(Host, "handle", lambda *_: Reply((), ()))
    return made


def test_each_rank_of_a_split_model_answers_a_sampled_draft(server):
    job = chains("drafter", (), (2,), sampled=True, rows=((5, 2),))
    assert server.handle(1, job, (), ()) == (Reply((), ()), None)


@pytest.mark.parametrize(
    ("job", "rows"),
    [(Import("drafter", (), 0, ...), ()), (Prefill("drafter", ()), ((("cpu:9", 0), 0, 0),))],
    ids=["without its bytes", "rows of an unknown worker"],
)
def test_a_broken_message_fails_its_job_and_not_the_worker(server, job, rows):
    error, data = server.handle(1, job, rows, ())
    assert (type(error), data) == (SpecScopeError, None)
