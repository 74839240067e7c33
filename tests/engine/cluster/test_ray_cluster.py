"""A connection to Ray without Ray: what a dead head and a dead node of this machine lead to."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from specscope.engine.cluster import ray_cluster
from specscope.engine.cluster.ray_cluster import RayCluster
from specscope.engine.cluster.ray_connect import import_ray
from specscope.engine.errors import SpecScopeError

HEAD, OWN = "10.0.0.1:6379", {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "NodeManagerPort": 1}


class FakeRay:
    """Two nodes that Ray believes alive; `down` has those whose ports take no connections."""

    def __init__(self) -> None:
        self.connected, self.down = False, set[tuple[str, int]]()
        self._private = SimpleNamespace(worker=SimpleNamespace(print_to_stdstream=print))

    def init(self, **_) -> None:
        self.connected = True

    def shutdown(self) -> None:
        self.connected = False

    def is_initialized(self) -> bool:
        return self.connected

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=HEAD, get_node_id=lambda: "a")

    def nodes(self):
        other = OWN | {"NodeID": "b", "NodeManagerAddress": "10.0.0.2"}
        return [{**node, "Alive": True, "Resources": {"CPU": 1}} for node in (OWN, other)]

    def reachable(self, host: str, port: int) -> bool:
        return (host, port) not in self.down


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_cluster, "import_ray", lambda *, starts: fake)
    monkeypatch.setattr(ray_cluster, "checked", lambda address: address)
    monkeypatch.setattr(ray_cluster, "free_by_node", dict)
    monkeypatch.setattr(RayCluster, "_free_devices", lambda _: None)
    monkeypatch.setattr(ray_cluster, "reachable", fake.reachable)
    monkeypatch.setattr("specscope.engine.runtimes.ray.worker.reachable", fake.reachable)
    monkeypatch.setattr(ray_cluster, "EVERY_S", 0.005)
    return fake


def test_a_dead_head_ends_jobs_and_the_connection_before_ray_ends_this_process(ray) -> None:
    cluster, worker = RayCluster(HEAD, 1), Mock()
    cluster.watch(worker)
    assert [node.name for node in cluster.nodes()] == ["node 1 (10.0.0.1)", "node 2 (10.0.0.2)"]
    ray.down.add(("10.0.0.1", 6379))
    deadline = time.monotonic() + 20
    while ray.connected:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    worker.lose.assert_called_once_with(f"lost the head of its cluster ({HEAD})")
    assert worker.check.call_count >= ray_cluster.HEADLESS
    ray.down.clear()  # the head is back; this connection is not
    with pytest.raises(SpecScopeError, match=r"head of the Ray cluster \(10\.0\.0\.1:6379\) does not answer"):
        cluster.nodes()
    cluster.close()
    again = RayCluster(HEAD, 1)
    assert len(again.nodes()) == 2
    again.close()


def test_a_head_that_is_silent_for_a_moment_ends_nothing(ray) -> None:
    cluster, worker, silent = RayCluster(HEAD, 1), Mock(), iter([False] * (ray_cluster.HEADLESS - 1))
    cluster._head_answers = lambda: next(silent, True)
    cluster.watch(worker)
    deadline = time.monotonic() + 20
    while worker.check.call_count < 2 * ray_cluster.HEADLESS:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert (ray.connected, worker.lose.call_count) == (True, 0)
    cluster.close()


def test_without_its_own_node_a_session_ends_at_once_and_without_another_one_it_goes_on(ray) -> None:
    cluster = RayCluster(HEAD, 1)
    ray.down.add(("10.0.0.2", 1))
    assert [node.own for node in cluster.nodes()] == [True]
    ray.down.add(("10.0.0.1", 1))
    with pytest.raises(SpecScopeError, match="Ray's node on this machine does not answer; start Ray here"):
        cluster.nodes()
    cluster.close()


def test_ray_is_imported_without_its_handler_of_sigterm_which_aborts_a_playground(monkeypatch) -> None:
    name, fake = "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", SimpleNamespace()
    monkeypatch.setattr(os, "environ", {key: value for key, value in os.environ.items() if key != name})
    monkeypatch.setitem(sys.modules, "ray", fake)
    assert import_ray(starts=False) is fake
    assert os.environ[name] == "1"
    os.environ[name] = "0"
    import_ray(starts=False)
    assert os.environ[name] == "0", "the user's choice stays"
