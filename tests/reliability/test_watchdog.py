"""The watchdog: processes that it gives up, and those that it leaves alone."""

from __future__ import annotations

import signal
import subprocess
import time

import numpy as np
import psutil
import pytest

from specscope.engine.hangs import IDLE, IDLE_LONG, STOPPED
from specscope.engine.runtimes.watchdog import FACTOR, FLOOR, Owed, Watchdog, rows_of
from specscope.engine.types import Prefix
from specscope.engine.worker.jobs import Load
from tests.engine.worker.harness import chains

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


@pytest.fixture
def busy(start):
    return start(["sh", "-c", "while :; do :; done"], psutil.STATUS_RUNNING)


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
    assert checks(asleep, OWED._replace(jobs=())) == (0, "")


def test_a_process_with_an_unread_reply_is_not_given_up(asleep):
    assert checks(asleep, OWED._replace(unread=True)) == (0, "")


def test_a_process_that_loads_or_waits_for_a_gpu_may_sleep_for_longer(asleep):
    loading = OWED._replace(jobs=(Load("target", DRAFT.__class__),))
    for owed in (loading, OWED._replace(patient=True)):
        assert checks(asleep, owed)[0] == IDLE_LONG + 1


def test_a_reply_resets_the_count(asleep):
    watchdog = Watchdog(asleep.pid)
    assert not any(watchdog.check(OWED._replace(replies=i // IDLE)) for i in range(10 * IDLE))


def test_a_busy_process_is_given_up_only_after_many_times_its_slowest_job(busy):
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
