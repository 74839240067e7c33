"""Windows of a stored run as bins of equal width, computed from the run's times in memory.

The columns of a run are read once, in one pass over its rows; the bins of any window then take a
few milliseconds. All times are nanoseconds since the run's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from sqlalchemy import Integer, case, func, select, type_coerce

from engine.trace.events import Commit, Round, Span
from traces import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from sqlalchemy import ColumnElement, Connection

    from traces.windows import Extent

    Numbers: TypeAlias = NDArray[np.int64]

_SPAN, _TOKEN, _ROUND = schema.ROWS[Span], schema.ROWS[Commit], schema.ROWS[Round]
_CODES = 64
"""More than there are codes of a kind or an outcome."""


class Spans(NamedTuple):
    """The spans of one kind and outcome on a device."""

    device: str
    kind: str
    cancelled: bool
    start: Numbers
    end: Numbers


class Columns(NamedTuple):
    """The times of a run's rows."""

    spans: list[Spans]
    """By device and kind, cancelled ones first."""
    tokens: Numbers
    rounds: Numbers
    drafted: Numbers
    accepted: Numbers


class Work(NamedTuple):
    """The work of one kind on a device."""

    device: str
    kind: str
    cancelled: bool
    busy: list[int]


class Bins(NamedTuple):
    """A window in bins of equal width."""

    low: int
    width: int
    spans: list[int]
    work: list[Work]
    tokens: list[int]
    drafted: list[int]
    accepted: list[int]


def columns(connection: Connection, run: int, devices: Sequence[str]) -> Columns:
    """Return the columns of a run (its key); ValueError for a damaged time or number."""
    device = case({name: i for i, name in enumerate(devices)}, value=_SPAN.c.device, else_=len(devices))
    kind, outcome = (type_coerce(_SPAN.c[name], Integer) for name in ("kind", "outcome"))
    style = (device * _CODES + kind) * _CODES + outcome
    start, end, styles = numbers(connection, _SPAN.c.run == run, _SPAN.c.start, _SPAN.c.end, style)
    (tokens,) = numbers(connection, _TOKEN.c.run == run, _TOKEN.c.time)
    rounds = numbers(connection, _ROUND.c.run == run, _ROUND.c.time, _ROUND.c.drafted, _ROUND.c.accepted)
    spans = list[Spans]()
    for code in np.unique(styles).tolist():
        place: int = code // _CODES**2
        if place < len(devices):
            name, own = schema.KINDS[code // _CODES % _CODES], styles == code
            cancelled = schema.SPAN_OUTCOMES[code % _CODES] == "cancelled"
            spans.append(Spans(devices[place], name, cancelled, start[own], end[own]))
    spans.sort(key=lambda s: (s.device, s.kind, not s.cancelled))
    return Columns(spans, tokens, *rounds)


def numbers(connection: Connection, where: ColumnElement[bool], *values: ColumnElement[Any]) -> list[Numbers]:
    """Return columns of integers of some rows, in the order recorded; ValueError for another type.

    One text per column takes half the time of a tuple per row.
    """
    texts = [func.group_concat(value) for value in values]
    rows, *found = connection.execute(select(func.count(), *texts).where(where)).one()
    columns = [np.fromstring(text or "", dtype=np.int64, sep=",") for text in found]
    if any(len(column) != rows for column in columns):
        raise ValueError(f"one of {', '.join(str(value) for value in values)} is no integer")
    return columns


def bins(known: Columns, size: Extent, low: int, high: int, number: int) -> Bins:
    """Return the window [low, high] as `number` bins: work on each device, and drafts.

    A span is counted in the bin in which it starts; time beyond that bin is carried into the next.
    """
    width = max(1, -(-(high - low) // number))
    counts, work = np.zeros(number, np.int64), list[Work]()
    for device, kind, cancelled, start, end in known.spans:
        near = (start >= low - size.longest) & (start <= high) & (end > low)
        if near.any():
            begin = np.maximum(start[near], low)
            busy = _summed(begin, np.minimum(end[near], high) - begin, low, width, number)
            counts += _summed(begin, None, low, width, number)
            work.append(Work(device, kind, cancelled, _carried(busy, width)))
    tokens = known.tokens[(known.tokens >= low) & (known.tokens <= high)]
    inside = (known.rounds >= low) & (known.rounds <= high)
    sums = [
        _summed(known.rounds[inside], column[inside], low, width, number).tolist()
        for column in (known.drafted, known.accepted)
    ]
    return Bins(
        low,
        width,
        counts.tolist(),
        work,
        _summed(tokens, None, low, width, number).tolist(),
        sums[0],
        sums[1],
    )


def _summed(times: Numbers, values: Numbers | None, low: int, width: int, number: int) -> Numbers:
    """Return the sum of the values in each bin; without values, how many times there are."""
    sums = np.zeros(number, np.int64)
    place = np.minimum((times - low) // width, number - 1)
    np.add.at(sums, place, 1 if values is None else values)
    return sums


def _carried(busy: Numbers, width: int) -> list[int]:
    """Cut each bin's time to its width; the time above it goes to the next bin."""
    over = np.concatenate(([0], np.cumsum(busy - width)[:-1]))
    return np.minimum(width, busy + over - np.minimum.accumulate(over)).tolist()


class Line(NamedTuple):
    """The tokens of a sequence, in the order committed."""

    ids: Numbers
    times: Numbers


def line(connection: Connection, run: int, sequence: int) -> Line:
    """Return the tokens of a sequence of a run (its key); ValueError for a damaged number."""
    own = (_TOKEN.c.run == run) & (_TOKEN.c.sequence == sequence)
    return Line(*numbers(connection, own, _TOKEN.c.token, _TOKEN.c.time))


def commits(
    connection: Connection, run: int, sequence: int, first: int, most: int
) -> list[tuple[int, Commit]]:
    """Return at most `most` commits of a sequence, from its commit `first` (from 0) on.

    Each has the number of the run's commits before it; `run` is the run's key.
    """
    own = select(_TOKEN.c.number, *schema.COLUMNS[Commit]).where(
        _TOKEN.c.run == run, _TOKEN.c.sequence == sequence
    )
    rows = connection.execute(own.order_by(_TOKEN.c.number).offset(first).limit(most)).all()
    return [(number - 1, Commit(*values)) for number, *values in rows]
