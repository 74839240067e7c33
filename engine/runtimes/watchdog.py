"""The watchdog of a worker process: once a second, it checks the system's data about the process.

A worker that owes a reply is given up in three cases:

- It is stopped (SIGSTOP) at `STOPPED` checks in a row.
- All its threads sleep and it uses no processor time at `IDLE` checks in a row: a deadlock, or a
  reply that was never sent. A thread that waits for a processor or a disk does not count as asleep,
  so a busy machine raises no alarm. A worker that loads a model, or waits for a GPU or for another
  rank, gets `IDLE_LONG` checks.
- Its jobs take more than `FLOOR` checks, and more than `FACTOR` times as long as the longest of
  them takes at the slowest measured pace. Without a measurement this limit does not apply.

The watchdog counts checks and compares no clocks: it makes none while a laptop sleeps or a
container is frozen.
"""

from __future__ import annotations

import contextlib
from operator import mul
from pathlib import Path
from typing import NamedTuple

import psutil

from specscope.engine.worker.jobs import Connect, Fan, Job, Join, Link, Load, Measure, Propose, Score

EVERY_S = 1.0
STOPPED = 3
IDLE = 4
IDLE_LONG = 60
FLOOR = 60
FACTOR = 20


class Owed(NamedTuple):
    """A worker's unanswered jobs at the time of a check."""

    jobs: tuple[Job, ...]
    replies: int
    unread: bool
    """Whether the run has not read all data from the worker: then the run is late."""
    patient: bool
    """Whether the worker may sleep for longer, as it does with a GPU."""
    pace: float
    """Seconds of the slowest row so far; 0 before a measurement."""


class Watchdog:
    """Checks one process."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._replies = -1
        self._cpu = -1.0
        self._checks = self._stopped = self._idle = 0

    def check(self, owed: Owed) -> str:
        """Return the reason to give the worker up, if any; call it every `EVERY_S` seconds."""
        if not owed.jobs or owed.replies != self._replies:
            self._replies, self._cpu = owed.replies, -1.0
            self._checks = self._stopped = self._idle = 0
        if not owed.jobs:
            return ""
        self._checks += 1
        with contextlib.suppress(psutil.Error):  # the process ended, and its connection closed
            self._observe(owed.unread)
        return self._verdict(owed)

    def _observe(self, unread: bool) -> None:
        with self._process.oneshot():
            status, times = self._process.status(), self._process.cpu_times()
        before, self._cpu = self._cpu, times.user + times.system
        self._stopped = self._stopped + 1 if status == psutil.STATUS_STOPPED else 0
        idle = self._cpu == before and not unread and status == psutil.STATUS_SLEEPING
        self._idle = self._idle + 1 if idle and _all_sleep(self._process.pid) else 0

    def _verdict(self, owed: Owed) -> str:
        if self._stopped >= STOPPED:
            return "was stopped by a signal"
        patient = owed.patient or any(isinstance(job, Load | Connect | Join | Link) for job in owed.jobs)
        if self._idle >= (IDLE_LONG if patient else IDLE):
            return f"did nothing for {self._idle} s in the middle of its work"
        limit = max(FLOOR, FACTOR * owed.pace * max(map(rows_of, owed.jobs)))
        if owed.pace and self._checks > limit:
            return f"worked on one job for {self._checks} s, {FACTOR} times as long as its slowest one would take"
        return ""


def rows_of(job: Job) -> int:
    """Return the most rows that a job forwards: all of its prefixes and drafts, cached or not."""
    rows = sum(len(prefix) for prefix in getattr(job, "prefixes", ()))
    if isinstance(job, Propose):
        rows += len(job.prefixes) * job.shape.parents
    elif isinstance(job, Fan):
        rows += len(job.trunk) + sum(map(mul, job.forks, job.lengths))
    elif isinstance(job, Score):
        rows += sum(len(ids) for ids, _ in job.drafts)
    elif isinstance(job, Measure):
        rows += job.context + job.repeats * sum(job.rows)
    return rows


def _all_sleep(pid: int) -> bool:
    """Return whether all threads of a process sleep; true where the system has no /proc."""
    states = set[str]()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has just ended
            states.add(thread.read_text(errors="replace").rpartition(")")[2].split()[0])
    return states <= {"S"}
