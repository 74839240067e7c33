"""What Ray workers need without Ray: clocks of nodes, and data that travels by reference."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread

import pytest
import torch

from specscope.app.main import main
from specscope.engine.cluster.ray_connect import reason, speaks_grpc
from specscope.engine.errors import SpecScopeError
from specscope.engine.runtimes.process import Setup
from specscope.engine.runtimes.ray.server import RayServer
from specscope.engine.runtimes.ray.worker import Clock, References, bytes_of, compare, with_bytes
from specscope.engine.trace.events import Device
from specscope.engine.types import Draft, DraftToken, RowRef
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Connect, Import, Judge, JudgeAll, Prefill, Reply, Score, Stage, Stamp
from tests.engine.worker.harness import chains


def test_the_fastest_round_trip_gives_a_clock_and_its_error():
    """The other clock is 5,000 ahead; trips take 2,000 there, 400 back; the fastest 100 and 60."""
    now, trips = [0], iter([(2000, 400)] * 7 + [(100, 60)] + [(2000, 400)] * 8)

    def there():
        out, back = next(trips)
        now[0] += out + back
        return now[0] - back + 5000

    clock = compare(there, lambda: now[0])
    assert clock == (5020, 80)
    reply = clock.local(Reply(None, (Stamp("verify", 6020, 7020, 1, 0),)))
    assert [(stamp.start, stamp.end) for stamp in reply.stamps] == [(1000, 2000)]
    assert Clock().local(reply) is reply


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
