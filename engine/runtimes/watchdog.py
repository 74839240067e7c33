"""The watchdog of a worker process: once a second, it looks for signs that the process hangs.

A worker is given up in three cases:

- It is stopped (SIGSTOP), also without a job: the next one would wait for it.
- It owes a reply and sleeps (`specscope.engine.hangs`): a deadlock, or a reply that was never sent.
  A worker that loads a model, or waits for a GPU or for another rank, may sleep for longer.
- Its jobs take more than `FLOOR` checks, and more than `FACTOR` times as long as the longest of
  them takes at the slowest measured pace. Without a measurement this limit does not apply.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

from specscope.engine.hangs import IDLE, IDLE_LONG, Signs
from specscope.engine.worker.jobs import Connect, Fan, Job, Join, Link, LoadModel, Measure, Propose, Score

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
        self._signs = Signs(pid)
        self._replies = -1
        self._checks = 0

    def check(self, owed: Owed) -> str:
        """Return the reason to give the worker up, if any; call it every `EVERY_S` seconds."""
        if not owed.jobs or owed.replies != self._replies:
            self._replies, self._checks = owed.replies, 0
            self._signs.awake()
        self._checks += 1
        patient = owed.patient or any(isinstance(job, LoadModel | Connect | Join | Link) for job in owed.jobs)
        return self._signs.check(IDLE_LONG if patient else IDLE, unread=owed.unread) or self._late(owed)

    def _late(self, owed: Owed) -> str:
        limit = max(FLOOR, FACTOR * owed.pace * max(map(rows_of, owed.jobs), default=0))
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
