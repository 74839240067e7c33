"""Worker processes: death and SIGSTOP in a run, a broken model, and the server that forks them."""

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

import specscope
from specscope.engine import environment, hangs
from specscope.engine.errors import SpecScopeError, StarterDied, WorkerDied
from specscope.engine.runtimes import forks, process
from specscope.engine.runtimes.process import ProcessWorker, Setup
from specscope.engine.trace.events import Device, Footer, Span
from specscope.engine.types import Limits
from specscope.engine.worker.jobs import LoadModel
from tests.engine.runtimes.processes import (
    PROMPT,
    SPLIT,
    TWO,
    at_span,
    gone,
    ranks,
    servers,
    stages,
    worker_processes,
)

KILLED = (signal.SIGKILL, "was killed by SIGKILL")
STOPPED = (signal.SIGSTOP, "was stopped by a signal and was killed")
# method, config, workers' function, victim's key, spans before the signal, (signal, error)
VICTIMS = {
    "the drafter": ("speculative", {}, servers, "drafter", 8, KILLED),
    "the target of a pool": ("dsi", {}, servers, "target", 8, STOPPED),
    "the first stage": ("pearl", SPLIT, stages, 0, 30, STOPPED),
    "the last stage": ("pearl", SPLIT, stages, 1, 30, KILLED),
    "the first rank": ("easyspec", TWO, ranks, 0, 30, KILLED),
    "the second rank": ("easyspec", TWO, ranks, 1, 30, STOPPED),
}


def shared_memory():
    """Return the handles of shared memory that this process holds."""
    handles = Path("/proc/self/fd").iterdir()
    return {handle.name for handle in handles if handle.is_symlink() and "specscope" in os.readlink(handle)}


def works(cluster, method, config):
    """Return whether a short run on the cluster ends with the status done."""
    return cluster.run(method, PROMPT, config=config, limits=Limits(4)).status == "done"


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_or_stopped_worker_fails_its_run_with_an_error_that_names_it(victim):
    method, config, workers, key, spans, (number, how) = VICTIMS[victim]
    handles = shared_memory()  # of clusters that other tests keep open
    with specscope.open(device="cpu") as cluster:
        assert works(cluster, method, config), "also after the cluster of another victim"
        pid, events = workers(cluster)[key].pid, list[object]()
        others = [worker.pid for worker in servers(cluster).values() if worker.pid != pid]
        assert len(others) == 1
        assert shared_memory() <= handles, "the handles of mapped memory are closed"
        kill = at_span(spans, lambda: os.kill(pid, number))

        def listen(event):
            events.append(event)
            kill(event)

        start = time.perf_counter()
        with pytest.raises(WorkerDied, match=rf"CPU core \d+ \(process {pid}\) {how}"):
            cluster.run(method, PROMPT, config=config, limits=Limits(2000), listener=listen)
        assert time.perf_counter() - start < 10
        assert isinstance(events[-1], Footer)
        assert events[-1].status == "failed"
        assert how in events[-1].error
        assert sum(isinstance(e, Span) for e in events) >= spans, "the trace is kept"
        assert gone(pid)
        assert all(map(psutil.pid_exists, others))
        assert works(cluster, method, config), "with new workers"
    assert all(map(gone, others)), "closing ends all processes"
    assert shared_memory() <= handles


forks_workers = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks workers")


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


@forks_workers
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
            second.prepare(LoadModel("target", surroundings))()
        assert capfd.readouterr() == ("a printed line\n", "")
    finally:
        second.close()
    assert gone(second.pid)


def refuse(text):
    raise SpecScopeError(text)


def test_a_wait_that_ctrl_c_ended_leaves_the_next_reply_to_its_job(worker):
    worker.prepare(LoadModel("target", partial(refuse, "one")))  # nobody waits for it any more
    with pytest.raises(SpecScopeError, match=r"^two$"):
        worker.prepare(LoadModel("target", partial(refuse, "two")))()


@pytest.fixture
def quick(monkeypatch):
    """Let the watchdogs check often."""
    for module in (hangs, process):
        monkeypatch.setattr(module, "EVERY_S", 0.05)


@forks_workers
def test_a_stopped_server_is_killed_when_it_is_asked_for_a_worker(quick):
    server = forks.ForkServer()
    server.process.send_signal(signal.SIGSTOP)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(StarterDied, match=r"starts the workers .* was stopped by a signal"):
        server.fork(theirs)
    assert not server.runs
    assert server.process.returncode == -signal.SIGKILL
    server.close()


@forks_workers
def test_a_server_that_is_stopped_delays_neither_the_end_of_a_worker_nor_its_code(worker, server):
    other = start()
    server.suspend()
    try:
        begun = time.monotonic()
        assert not worker.ended
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(WorkerDied, match=rf"process {worker.pid}\) was killed by SIGSEGV"):
            worker.prepare(LoadModel("target", surroundings))()
        other.close()
        assert other.ended
        assert time.monotonic() - begun < 2
    finally:
        server.resume()
        other.close()
    assert gone(other.pid)


@forks_workers
def test_a_stopped_worker_without_a_job_is_ended(quick, worker):
    os.kill(worker.pid, signal.SIGSTOP)
    while not worker.ended:
        time.sleep(0.01)
    with pytest.raises(WorkerDied, match="was stopped by a signal and was killed"):
        worker.prepare(LoadModel("target", surroundings))()


@forks_workers
def test_a_process_whose_parent_ended_before_it_could_ask_the_kernel_ends():
    ended = subprocess.Popen(["true"])
    ended.wait()
    words = environment.command("specscope.engine.runtimes", "0", str(ended.pid), "forks")
    assert subprocess.run(words, env=environment.variables(), timeout=60, check=False).returncode == 1
