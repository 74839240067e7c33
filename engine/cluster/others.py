"""Processor time that other programs use, by psutil."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

import psutil

from engine.trace.events import OTHERS, Occupancy

SHORTEST = 0.2
"""Seconds; over a shorter time the load is not computed."""


class Reading(NamedTuple):
    """Processor time so far, in core seconds."""

    wall: float
    machine: float
    """Of all programs."""
    own: dict[int, float]
    """Of each own process, by id."""


def read(processes: Iterable[psutil.Process]) -> Reading:
    """Return the processor time used until now; `processes` are the own ones."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also in user and nice
    seconds: dict[int, float] = {}
    for process in processes:
        try:
            used = process.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        seconds[process.pid] = used.user + used.system
    return Reading(time.monotonic(), sum(times) - idle - guest, seconds)


def others(before: Reading, after: Reading) -> float | None:
    """Return the cores that other programs used between two readings; None for a short time."""
    seconds = after.wall - before.wall
    if seconds < SHORTEST:
        return None
    own = sum(used - before.own.get(pid, 0.0) for pid, used in after.own.items())
    return max(0.0, after.machine - before.machine - own) / seconds


class OtherPrograms:
    """The load of the machine by other programs during a run.

    Args:
        workers: Process ids of the run's workers.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        self._processes = [psutil.Process()]
        for pid in workers:
            try:
                self._processes.append(psutil.Process(pid))
            except psutil.Error:  # a dead worker ends the run with its own error
                continue
        self._before = read(self._processes)

    def cores(self) -> float:
        """Return the cores that other programs used until now; 0 for a short time."""
        return others(self._before, read(self._processes)) or 0.0

    def row(self, time: int) -> Occupancy | None:
        """Return the load until now as a row; None for a short run.

        Args:
            time: Nanoseconds since the run's start.
        """
        used = others(self._before, read(self._processes))
        if used is None:
            return None
        return Occupancy(OTHERS, time, min(1.0, used / (psutil.cpu_count() or 1)), 0)
