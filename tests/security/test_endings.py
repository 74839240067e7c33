"""Signals to the server: workers end, runs are stored; it ends although a page still computes."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specscope.traces.store import Store

ROOT = Path(__file__).parents[2]
SERVER = """
import sys
from pathlib import Path
from specscope.app import main, server
from specscope.app.runs import RunRequest
from tests.app.fakes import FakeCluster, FakeOpen

class Reported(FakeCluster):
    waits = 0

    def _wait(self, cancel):
        self.waits += 1
        if self.waits == 3:  # two words are decoded
            print("decoding", flush=True)
        return super()._wait(cancel)

    def close(self):
        super().close()
        print("cluster closed", flush=True)

def service(database, **more):
    real = Service(database, FakeOpen(Reported(words=("word",) * 100_000, delay=0.01)), **more)
    start, real.start = real.start, lambda request: (start(request), start(RunRequest(method="pearl", prompt="Hi")))
    return real

Service, server.Service = server.Service, service
sys.exit(main.main(["play", "--pair", "bundled", "--port", "0", "--db", sys.argv[1]]))
"""


def test_sigterm_ends_the_workers_stores_the_run_and_exits_with_143(tmp_path) -> None:
    database = tmp_path / "traces.db"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(database)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = sorted(process.stdout.readline() for _ in range(2))
        assert lines[1] == "decoding\n", lines
        page = http.client.HTTPConnection("127.0.0.1", int(lines[0].rpartition(":")[2]), timeout=60)
        page.request("GET", "/gradio_api/heartbeat/open-page")
        assert page.getresponse().status == 200  # a stream without an end
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signal.SIGTERM
    assert "cluster closed" in output
    assert errors == "specscope: stopped\n"
    store = Store(database)
    (run,), _ = store.runs()
    trace = store.load(run.header.run_id)
    store.close()
    assert trace.status == "cancelled"
    assert trace.text.startswith("word")


STUCK = """
import asyncio, sys, time
from types import SimpleNamespace
from specscope.app import main, server

async def app(scope, receive, send):
    if scope["type"] == "http":
        print("computing", flush=True)
        await asyncio.to_thread(time.sleep, 600)  # no cancellation ends a thread

server.PAGE_S = server.CLOSE_S = 0.2
server.build_app = lambda *_, **__: app
server.Service = lambda *_, **__: SimpleNamespace(start=lambda _: None, close=lambda: time.sleep(600))
sys.argv = ["specscope", "play", "--pair", "bundled", "--port", "0"]
sys.exit(main.main())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_whose_page_and_runs_do_not_end(number) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", STUCK], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        port = int(program.stdout.readline().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as call:
            call.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert program.stdout.readline() == "computing\n"
            program.send_signal(number)
            _, errors = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 128 + number
    assert errors == "specscope: stopped\n"
