"""How much other programs load the machine while runs are measured, by psutil."""

from __future__ import annotations

import time
from typing import NamedTuple

import psutil

TOO_BUSY = 0.5
"""Cores used by other programs from which on a comparison is marked."""
SHORTEST = 0.2
"""Seconds; over a shorter time the load is not computed."""


class Reading(NamedTuple):
    """Processor time so far, in core seconds."""

    wall: float
    machine: float
    """Of all programs."""
    own: dict[int, float]
    """Of this program and each of its workers, by process id."""


def read_load() -> Reading:
    """Return the processor time used until now."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also in user and nice
    return Reading(time.monotonic(), sum(times) - idle - guest, _own())


def _own() -> dict[int, float]:
    me = psutil.Process()
    seconds: dict[int, float] = {}
    for process in (me, *me.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        seconds[process.pid] = used.user + used.system
    return seconds


def others(before: Reading, after: Reading) -> float | None:
    """Return the cores that other programs used between two readings; None for a short time."""
    seconds = after.wall - before.wall
    if seconds < SHORTEST:
        return None
    own = sum(used - before.own.get(pid, 0.0) for pid, used in after.own.items())
    return max(0.0, after.machine - before.machine - own) / seconds


def busy_warning(before: Reading, after: Reading, cores: int) -> str:
    """Return a warning if other programs used much of the machine; empty otherwise."""
    used = others(before, after)
    if used is None or used < TOO_BUSY:
        return ""
    return (
        f"Other programs used {used:.1f} of {cores} cores meanwhile: the times may be wrong. "
        "Run more passes, or close other programs."
    )
