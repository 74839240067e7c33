"""Times of forwards measured on a grid (`specscope calibrate`), in place of a roofline's.

The grid has three axes: rows per sequence, cached rows per sequence, sequences. Times are
interpolated on one axis after the other. Below the first point of an axis, the time is that
point's. Above the last point, the line through the last two points continues unless it falls: noise
must not make more work faster than any measurement. Times are not smoothed.
"""

from __future__ import annotations

import reprlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Any

from specscope.engine.errors import UsageError

Axis = tuple[float, ...]
MOST_POINTS = 10_000
MOST_ROWS = 1 << 27
_SHORTEST, _LONGEST = 1e-3, 1e9
"""Microseconds of a forward."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Microseconds of a forward at every combination of three ascending axes."""

    rows: Axis
    contexts: Axis
    batches: Axis
    times: Mapping[tuple[float, float, float], float] = field(hash=False)
    """By (rows, context, batch)."""

    @classmethod
    def of(cls, points: Sequence[Any]) -> Grid:
        """Return the grid of points (rows and context per sequence, batch, microseconds)."""
        if len(points) > MOST_POINTS:
            raise UsageError(f"there are {len(points)} points; there may be at most {MOST_POINTS}")
        times: dict[tuple[float, float, float], float] = {}
        for point in points:
            rows, context, batch, us = _point(point)
            if (rows, context, batch) in times:
                raise UsageError(f"{reprlib.repr(point)} is measured twice")
            times[rows, context, batch] = us
        rows, contexts, batches = (tuple(sorted({key[i] for key in times})) for i in range(3))
        missing = next((key for key in product(rows, contexts, batches) if key not in times), None)
        if missing is not None:
            raise UsageError(f"there is no time for rows, context, batch = {list(missing)}")
        return cls(rows, contexts, batches, times)

    def __call__(self, rows: float, context: float, batch: float) -> float:
        """Return a forward's microseconds; rows and context per sequence may be fractions."""

        def at_rows(c: float, b: float) -> float:
            return _line(self.rows, [self.times[r, c, b] for r in self.rows], rows)

        def at_context(b: float) -> float:
            return _line(self.contexts, [at_rows(c, b) for c in self.contexts], context)

        return _line(self.batches, [at_context(b) for b in self.batches], batch)

    @property
    def one_row(self) -> float:
        return median(self(1, context, 1) for context in self.contexts)


def _point(point: Any) -> tuple[float, float, float, float]:
    numbers = point if isinstance(point, list) else []
    if len(numbers) != 4 or not all(type(n) in (int, float) for n in numbers):
        raise UsageError(
            f"{reprlib.repr(point)} is no point; it must be [rows, context, batch, microseconds]"
        )
    rows, context, batch, us = numbers
    placed = 1 <= rows <= MOST_ROWS and 0 <= context <= MOST_ROWS and 1 <= batch <= MOST_ROWS
    if not placed or not _SHORTEST <= us <= _LONGEST:
        raise UsageError(
            f"{reprlib.repr(point)} is out of range; rows and batch must be at least 1, context at least 0, all at most "
            f"{MOST_ROWS}, and the time at least {_SHORTEST:g} and at most {_LONGEST:g} microseconds"
        )
    return rows, context, batch, us


def _line(xs: Axis, ys: Sequence[float], x: float) -> float:
    if len(xs) == 1 or x <= xs[0]:
        return ys[0]
    right = min(bisect_right(xs, x), len(xs) - 1)
    left = right - 1
    y = ys[left] + (ys[right] - ys[left]) * (x - xs[left]) / (xs[right] - xs[left])
    return max(y, ys[right]) if x > xs[-1] else y
