"""The fork server: its workers' surroundings, its end, and a server that does not answer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from specscope.engine import environment, hangs
from specscope.engine.errors import SpecScopeError, StarterDied, WorkerDied
from specscope.engine.runtimes import forks, process
from specscope.engine.runtimes.process import ProcessWorker, Setup
from specscope.engine.trace.events import Device
from specscope.engine.worker.jobs import Load
from tests.engine.runtimes.processes import gone, worker_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks workers")


def surroundings():
    """Print a line, and raise an error with a variable, the working directory and the session."""
    print("a printed line", flush=True)
    raise SpecScopeError(f"{os.environ.get('SPECSCOPE_SURROUNDINGS')} {os.getcwd()} {os.getsid(0)}")


def start():
    return ProcessWorker(Setup("worker", Device("cpu:0", "", "CPU core 0", "cpu"), 1, None))


@pytest.fixture
def worker():
    started = start()
    yield started
    started.close()


@pytest.fixture
def server(worker):
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
    assert gone(second.pid)


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


@pytest.fixture
def quick(monkeypatch):
    """Let the watchdogs check often."""
    for module in (hangs, process):
        monkeypatch.setattr(module, "EVERY_S", 0.05)


def test_a_stopped_server_is_killed_when_it_is_asked_for_a_worker(quick):
    server = forks.ForkServer()
    server.process.send_signal(signal.SIGSTOP)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(StarterDied, match=r"starts the workers .* was stopped by a signal"):
        server.fork(theirs)
    assert not server.runs
    assert server.process.returncode == -signal.SIGKILL
    server.close()


def test_a_server_that_is_stopped_delays_neither_the_end_of_a_worker_nor_its_code(worker, server):
    other = start()
    server.suspend()
    try:
        begun = time.monotonic()
        assert not worker.ended
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(WorkerDied, match=rf"process {worker.pid}\) was killed by SIGSEGV"):
            worker.prepare(Load("target", surroundings))()
        other.close()
        assert other.ended
        assert time.monotonic() - begun < 2
    finally:
        server.resume()
        other.close()
    assert gone(other.pid)


def test_a_stopped_worker_without_a_job_is_ended(quick, worker):
    os.kill(worker.pid, signal.SIGSTOP)
    while not worker.ended:
        time.sleep(0.01)
    with pytest.raises(WorkerDied, match="was stopped by a signal and was killed"):
        worker.prepare(Load("target", surroundings))()


def test_a_process_whose_parent_ended_before_it_could_ask_the_kernel_ends():
    ended = subprocess.Popen(["true"])
    ended.wait()
    words = environment.command("specscope.engine.runtimes", "0", str(ended.pid), "forks")
    assert subprocess.run(words, env=environment.variables(), timeout=60, check=False).returncode == 1
