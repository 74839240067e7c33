"""Intervals (start, end): their union, and rows in which none overlap."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

Interval: TypeAlias = tuple[int, int]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def lanes(intervals: Iterable[Interval]) -> list[int]:
    """Return the lane of each interval, from 0: the first lane that is free when it starts.

    The intervals are the spans of one device, by start.
    """
    free, busy, taken = list[int](), list[tuple[int, int]](), list[int]()
    for start, end in intervals:
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy)
        heappush(busy, (end, lane))
        taken.append(lane)
    return taken
