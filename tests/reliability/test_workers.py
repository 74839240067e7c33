"""Workers that are stopped, sleep, spin or crash: a one-line error with the device, within 10 s."""

from __future__ import annotations

import os
import signal
import threading
import time

import psutil
import pytest

from specscope.engine import hangs
from specscope.engine.errors import SpecScopeError, WorkerDied
from specscope.engine.trace.events import Footer
from specscope.engine.types import Limits
from tests.engine.runtimes.processes import gone
from tests.reliability.odd import behave, crash, fail, odd_cluster, pid_of, prompt, sleep, spin

LIMIT_S = 10


@pytest.fixture
def cluster():
    with odd_cluster() as opened:
        yield opened


def run(cluster, act, events: list[object], **more: object):
    return cluster.run("autoregressive", prompt(act), limits=Limits(400), listener=events.append, **more)


def test_a_worker_stopped_before_it_received_a_large_message_is_named_in_ten_seconds():
    odd_cluster().close()  # the process that starts workers has imported the engine
    start = time.monotonic()
    with pytest.raises(WorkerDied, match=r"CPU core \d+.* was stopped by a signal and was killed"):
        odd_cluster(stopped=True, ballast=bytes(1 << 22))
    assert time.monotonic() - start < LIMIT_S


def test_a_forward_that_sleeps_for_ever_is_named_in_ten_seconds_also_after_cancel(cluster):
    pid, events, cancel = pid_of(cluster), list[object](), threading.Event()
    threading.Timer(1, cancel.set).start()
    start = time.monotonic()
    with pytest.raises(
        WorkerDied, match=rf"process {pid}\) did nothing for \d s in the middle of its work and was"
    ):
        run(cluster, sleep, events, cancel=cancel)
    assert time.monotonic() - start < LIMIT_S
    assert isinstance(events[-1], Footer)
    assert events[-1].status == "failed"
    assert gone(pid)


@pytest.fixture
def interruptible():
    """Make Ctrl-C raise KeyboardInterrupt, also if a shell made this process ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_interrupt_ends_a_run_whose_forward_spins_for_ever(cluster, interruptible):
    pid, events = pid_of(cluster), list[object]()
    interrupt = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(cluster, spin, events)
    assert time.monotonic() - start < LIMIT_S
    assert isinstance(events[-1], Footer)
    assert (events[-1].status, events[-1].error) == ("cancelled", "")
    assert gone(pid)


def test_an_error_is_one_line_and_a_crash_names_the_device(cluster, capfd):
    pid, events = pid_of(cluster), list[object]()
    with pytest.raises(SpecScopeError) as caught:
        run(cluster, fail, events)
    assert str(caught.value) == "ValueError: the first line and the second one"
    assert "in fail\n" in "".join(caught.value.__notes__), "the error has its traceback"
    assert capfd.readouterr() == ("", ""), "the worker prints nothing"
    trace = run(cluster, behave, events)
    assert trace.status == "done", "the worker goes on after an error"
    start = time.monotonic()
    with pytest.raises(WorkerDied, match=rf"CPU core \d+.* \(process {pid}\) was killed by SIGSEGV"):
        run(cluster, crash, events)
    assert time.monotonic() - start < LIMIT_S
    assert "SIGSEGV" in events[-1].error


def test_a_run_works_although_the_process_that_starts_workers_is_stopped(cluster, monkeypatch):
    monkeypatch.setattr(hangs, "EVERY_S", 0.05)
    first, pid = run(cluster, behave, []), pid_of(cluster)
    server = psutil.Process(pid).parent()
    server.suspend()
    assert run(cluster, behave, []).token_ids() == first.token_ids(), "no worker is needed"
    os.kill(pid, signal.SIGKILL)
    while not cluster.placement.workers[0].ended:
        time.sleep(0.01)
    assert run(cluster, behave, []).token_ids() == first.token_ids()
    assert not server.is_running()
    assert pid_of(cluster) != pid


def test_a_worker_that_ended_between_runs_is_started_again(cluster):
    first = run(cluster, behave, [])
    pid = pid_of(cluster)
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=LIMIT_S)
    again = run(cluster, behave, [])
    assert again.token_ids() == first.token_ids()
    assert pid_of(cluster) != pid


def test_a_fork_server_that_ended_between_runs_is_started_again(cluster):
    first = run(cluster, behave, [])
    server = psutil.Process(pid_of(cluster)).parent()
    assert server.pid != os.getpid()
    server.kill()
    server.wait(LIMIT_S)
    again = run(cluster, behave, [])
    assert again.token_ids() == first.token_ids()
    assert psutil.Process(pid_of(cluster)).parent() != server
