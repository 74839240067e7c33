"""How much of the machine other programs used during a run. Standard library only.

Linux tells the processor time of the machine and of each process in /proc; elsewhere nothing is
known, and a recording has no such row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import NamedTuple

from specscope.engine.trace.events import MEMBER, OTHERS, Occupancy

SHORTEST = 0.2
"""Seconds; over a shorter time the load is not computed."""
EVERY_NS = 10**8
"""Time after which a process that joined tells what it used."""
_PROC = Path("/proc")
_IDLE = (3, 4)
"""Of the times of /proc/stat: idle, and waiting for a disk. The first eight are all time."""


class ProcessorTime(NamedTuple):
    """Processor time so far, in core seconds."""

    wall: float
    """Seconds of `time.perf_counter`."""
    machine: float
    """Of all programs."""
    own: Mapping[int, float]
    """Of each own process, by id; or by one id of all of them, with those that have ended."""


def used() -> ProcessorTime | None:
    """Return the processor time so far, of all own processes together; None where it is unknown."""
    try:
        first = (_PROC / "stat").read_bytes().partition(b"\n")[0]
        times = [int(ticks) for ticks in first.split()[1:9]]
        machine = sum(times) - sum(times[i] for i in _IDLE)
        own = _own_ticks()
    except (OSError, ValueError, LookupError):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    return ProcessorTime(perf_counter(), machine / tick, {os.getpid(): own / tick})


def used_by_others(before: ProcessorTime, after: ProcessorTime) -> float | None:
    """Return the cores that other programs used between two readings; None for a short time."""
    seconds = after.wall - before.wall
    if seconds < SHORTEST:
        return None
    own = sum(used - before.own.get(pid, 0.0) for pid, used in after.own.items())
    return max(0.0, after.machine - before.machine - own) / seconds


def others_row(before: ProcessorTime, after: ProcessorTime, time: int) -> Occupancy | None:
    """Return this as a row at `time`, nanoseconds since the run's start."""
    cores = used_by_others(before, after)
    return None if cores is None else Occupancy(OTHERS, time, min(1.0, cores / _cores()), 0)


class MachineLoad:
    """The load by other programs of a recording that this process opened."""

    def __init__(self) -> None:
        self._before = self._opened = used()
        self._begin = 0

    def start(self, begin: int) -> None:
        """Measure from a time of `perf_counter_ns` on, or from the opening if this was earlier."""
        self._begin, now = begin, used()
        late = begin / 1e9 + SHORTEST
        known = [reading for reading in (now, self._opened) if reading is not None and reading.wall <= late]
        self._before = known[0] if known else None

    def row(self) -> Occupancy | None:
        """Return the load until now as a row; None if it is unknown, or the time short."""
        after = used() if self._before else None
        if self._before is None or after is None:
            return None
        return others_row(self._before, after, max(0, round(1e9 * after.wall) - self._begin))


class Member:
    """What a process that joined a recording used: it is none of the other programs.

    Children of the process that opened the recording are known to it; their rows are none.
    """

    def __init__(self, begin: int, opener: object) -> None:
        self._begin = begin
        self._counts = opener not in _ancestors(os.getpid())
        self._told = _own_seconds()
        self.due = self._now() + EVERY_NS
        """When the next row is due, since the run's start."""

    def _now(self) -> int:
        return perf_counter_ns() - self._begin

    def row(self) -> Occupancy | None:
        """Return what was used since the last row, as a share of all cores until now."""
        now, seconds = self._now(), _own_seconds()
        self.due = now + EVERY_NS
        if now <= 0 or not self._counts:
            return None
        share, self._told = 1e9 * (seconds - self._told) / now / _cores(), seconds
        return Occupancy(MEMBER, now, share, 0)


def _own_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _cores() -> int:
    return os.cpu_count() or 1


def _fields(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat from the parent's id on."""
    return list(map(int, (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1:]))


def _children(pid: int, thread: int) -> list[int]:
    return list(map(int, (_PROC / f"{pid}/task/{thread}/children").read_bytes().split()))


def _own_ticks() -> int:
    """Return the ticks of this process and of all that it started, with those of ended children."""
    tree, ticks = [os.getpid()], 0
    _children(tree[0], tree[0])  # an OSError where the kernel lists none
    for pid in tree:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            ticks += sum(_fields(pid)[10:14])
            for thread in os.listdir(_PROC / f"{pid}/task"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    tree += _children(pid, int(thread))
    return ticks


def _ancestors(pid: int) -> list[int]:
    """Return a process, its parent, and so on; only itself where nothing is known."""
    found = [pid]
    with suppress(OSError):
        while (parent := _fields(found[-1])[0]) > 0:
            found.append(parent)
    return found
