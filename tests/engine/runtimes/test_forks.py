"""The fork server: its workers' surroundings, its end, and a server that does not answer."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator

import psutil
import pytest

from specscope.engine.errors import SpecScopeError, WorkerDied
from specscope.engine.runtimes import forks
from specscope.engine.runtimes.process import ProcessWorker, Setup
from specscope.engine.trace.events import Device
from specscope.engine.worker.jobs import Load
from tests.engine.runtimes.processes import worker_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks workers")


def surroundings():
    """Print a line, and raise an error with a variable, the working directory and the session."""
    print("a printed line", flush=True)
    raise SpecScopeError(f"{os.environ.get('SPECSCOPE_SURROUNDINGS')} {os.getcwd()} {os.getsid(0)}")


def start() -> ProcessWorker:
    return ProcessWorker(Setup("worker", Device("cpu:0", "", "CPU core 0", "cpu"), 1, None))


@pytest.fixture
def worker() -> Iterator[ProcessWorker]:
    started = start()
    yield started
    started.close()


@pytest.fixture
def server(worker: ProcessWorker) -> psutil.Process:
    """The fork server of the worker."""
    return psutil.Process(worker.pid).parent()


def test_a_worker_has_the_variables_the_folder_and_the_outputs_of_its_request(
    server, tmp_path, monkeypatch, capfd
):
    assert server.num_threads() == 1, "a fork would copy only one of them"
    monkeypatch.setenv("SPECSCOPE_SURROUNDINGS", "blue")
    monkeypatch.chdir(tmp_path)
    second = start()
    try:
        assert psutil.Process(second.pid).parent() == server
        assert second.pid in [process.pid for process in worker_processes(os.getpid())]
        assert server.pid not in [process.pid for process in worker_processes(os.getpid())]
        with pytest.raises(SpecScopeError, match=f"^blue {tmp_path} {second.pid}$"):
            second.prepare(Load("target", surroundings))()
        assert capfd.readouterr() == ("a printed line\n", "")
    finally:
        second.close()
    assert not psutil.pid_exists(second.pid)


def test_workers_end_with_their_server_and_the_next_worker_gets_a_new_one(worker, server):
    server.kill()
    with pytest.raises(WorkerDied, match=rf"process {worker.pid}\) was killed by SIGKILL"):
        worker.prepare(Load("target", surroundings))()
    again = start()
    try:
        with pytest.raises(SpecScopeError, match=r"^None "):
            again.prepare(Load("target", surroundings))()
    finally:
        again.close()


def test_a_server_that_does_not_answer_is_killed(monkeypatch):
    monkeypatch.setattr(forks, "ANSWER_S", 0.2)
    server = forks.ForkServer()
    server.process.send_signal(signal.SIGSTOP)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(WorkerDied, match=r"starts the workers .* did not answer for 0.2 s"):
        server.fork(theirs, {})
    assert server.process.wait(10) == -signal.SIGKILL
    assert not server.runs
    server.close()
