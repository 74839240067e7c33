"""Workers that are stopped, sleep, spin or crash: one line within 10 s; what the watchdog does."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from specscope.engine import hangs
from specscope.engine.errors import SpecScopeError, WorkerDied
from specscope.engine.hangs import IDLE, IDLE_LONG, STOPPED
from specscope.engine.runtimes.watchdog import FACTOR, FLOOR, Owed, Watchdog, rows_of
from specscope.engine.trace.events import Footer
from specscope.engine.types import Limits, Prefix
from specscope.engine.worker.jobs import LoadModel
from tests.engine.runtimes.processes import gone
from tests.engine.worker.harness import chains
from tests.reliability.odd import behave, crash, fail, odd_cluster, pid_of, prompt, sleep, spin

LIMIT_S = 10


@pytest.fixture
def cluster():
    with odd_cluster() as opened:
        yield opened


def run(cluster, act, events: list[object], **more: object):
    return cluster.run("autoregressive", prompt(act), limits=Limits(400), listener=events.append, **more)


@contextmanager
def in_ten_seconds():
    start = time.monotonic()
    yield
    assert time.monotonic() - start < LIMIT_S


def test_a_worker_stopped_before_it_received_a_large_message_is_named_in_ten_seconds():
    odd_cluster().close()  # the process that starts workers has imported the engine
    message = r"CPU core \d+.* was stopped by a signal and was killed"
    with in_ten_seconds(), pytest.raises(WorkerDied, match=message):
        odd_cluster(stopped=True, ballast=bytes(1 << 22))


def test_a_forward_that_sleeps_for_ever_is_named_in_ten_seconds_also_after_cancel(cluster):
    pid, events, cancel = pid_of(cluster), list[object](), threading.Event()
    threading.Timer(1, cancel.set).start()
    message = rf"process {pid}\) did nothing for \d s in the middle of its work and was"
    with in_ten_seconds(), pytest.raises(WorkerDied, match=message):
        run(cluster, sleep, events, cancel=cancel)
    assert isinstance(events[-1], Footer)
    assert events[-1].status == "failed"
    assert gone(pid)


def test_the_first_interrupt_ends_a_run_whose_forward_spins_for_ever(cluster):
    pid, events = pid_of(cluster), list[object]()
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with in_ten_seconds(), pytest.raises(KeyboardInterrupt):
        run(cluster, spin, events)
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
    with (
        in_ten_seconds(),
        pytest.raises(WorkerDied, match=rf"CPU core \d+.* \(process {pid}\) was killed by SIGSEGV"),
    ):
        run(cluster, crash, events)
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


@pytest.mark.parametrize("victim", ["worker", "fork server"])
def test_a_process_that_ended_between_runs_is_started_again(cluster, victim):
    first, pid = run(cluster, behave, []), pid_of(cluster)
    server = psutil.Process(pid).parent()
    assert server.pid != os.getpid()
    ended = psutil.Process(pid) if victim == "worker" else server
    ended.kill()
    psutil.wait_procs([ended], timeout=LIMIT_S)
    assert run(cluster, behave, []).token_ids() == first.token_ids()
    assert pid_of(cluster) != pid
    assert (psutil.Process(pid_of(cluster)).parent() == server) == (victim == "worker")


DRAFT = chains("drafter", (Prefix(0, np.arange(6)),), (4,))
OWED = Owed((DRAFT,), 0, unread=False, patient=False, pace=0.0)


@pytest.fixture
def start():
    """Start a process and wait for its state."""
    started: list[subprocess.Popen[bytes]] = []

    def make(command: list[str], status: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command)
        started.append(process)
        while psutil.Process(process.pid).status() != status:
            time.sleep(0.01)
        return process

    yield make
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def asleep(start):
    return start(["sleep", "1000"], psutil.STATUS_SLEEPING)


def checks(process: subprocess.Popen[bytes], owed: Owed, count: int = 5 * FLOOR) -> tuple[int, str]:
    """Return the number of the check that gives the process up, and the reason; 0 for none."""
    watchdog = Watchdog(process.pid)
    return next(((i, reason) for i in range(1, count) if (reason := watchdog.check(owed))), (0, ""))


def test_a_stopped_process_is_given_up_whether_or_not_it_owes_a_reply(asleep):
    asleep.send_signal(signal.SIGSTOP)
    while psutil.Process(asleep.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    for owed in (OWED, OWED._replace(jobs=())):
        assert checks(asleep, owed) == (STOPPED, "was stopped by a signal")


def test_a_process_that_sleeps_is_given_up_when_it_owes_a_reply(asleep):
    assert checks(asleep, OWED) == (IDLE + 1, f"did nothing for {IDLE} s in the middle of its work")
    for idle in (OWED._replace(jobs=()), OWED._replace(unread=True)):
        assert checks(asleep, idle) == (0, "")


def test_a_process_that_loads_or_waits_for_a_gpu_may_sleep_for_longer(asleep):
    loading = OWED._replace(jobs=(LoadModel("target", DRAFT.__class__),))
    for owed in (loading, OWED._replace(patient=True)):
        assert checks(asleep, owed)[0] == IDLE_LONG + 1


def test_a_reply_resets_the_count(asleep):
    watchdog = Watchdog(asleep.pid)
    assert not any(watchdog.check(OWED._replace(replies=i // IDLE)) for i in range(10 * IDLE))


def test_a_busy_process_is_given_up_only_after_many_times_its_slowest_job(start):
    busy = start(["sh", "-c", "while :; do :; done"], psutil.STATUS_RUNNING)
    assert checks(busy, OWED) == (0, ""), "nothing was measured yet"
    assert checks(busy, OWED._replace(pace=0.005))[0] == FLOOR + 1
    limit = FACTOR * rows_of(DRAFT)
    number, why = checks(busy, OWED._replace(pace=1.0))
    assert number == limit + 1
    assert why == f"worked on one job for {number} s, {FACTOR} times as long as its slowest one would take"


def test_rows_include_cached_ones():
    assert rows_of(DRAFT) == 6 + 4
    assert rows_of(chains("drafter", DRAFT.prefixes, (9,))) == 6 + 9


def test_a_process_that_ended_is_not_given_up_twice(asleep):
    watchdog = Watchdog(asleep.pid)
    asleep.kill()
    asleep.wait()
    assert not any(watchdog.check(OWED) for _ in range(FLOOR))
