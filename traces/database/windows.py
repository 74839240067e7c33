"""Windows of a stored run: the rows of a part of its time, or bins where these are too many.

For bins, the columns of a run are read once, in one pass over its rows; the bins of any window then
take a few milliseconds. All times are nanoseconds since the run's start.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from sqlalchemy import Integer, case, func, literal, or_, select, true, type_coerce

from specscope.engine.trace.events import Commit, Decision, Part, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.database import schema
from specscope.traces.database.schema import RUN
from specscope.traces.facts.waiting import Around

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from sqlalchemy import ColumnElement, Connection

    from specscope.engine.trace.events import Footer, Header

    Numbers: TypeAlias = NDArray[np.int64]

_SPAN, _TOKEN, _ROUND = schema.ROWS[Span], schema.ROWS[Commit], schema.ROWS[Round]
_DECISION = schema.ROWS[Decision]
_PREFILL = (_SPAN.c.kind == "prefill") & (_SPAN.c.step == 0)
_CODES = 64
"""More than there are codes of a kind or an outcome."""


class Extent(NamedTuple):
    """The size of a run that has ended."""

    key: int
    """Of the run's row; a key is never used again."""
    rows: tuple[int, ...]
    """Number of the last span, token and round: a run with other numbers has more rows."""
    spans: int
    tokens: int
    start: int
    begin: int
    end: int
    longest: int
    """Length of the longest span other than a prefill before decoding."""
    devices: tuple[str, ...]
    working: tuple[str, ...]
    """The devices that did more than prefill."""


class RunWindow(NamedTuple):
    """The rows of a run in [low, high]."""

    trace: Trace
    low: int
    high: int
    around: Around


def extent(connection: Connection, run_id: str, known: dict[int, Extent]) -> Extent | None:
    """Return the size of a stored run; None for an unknown run, and for one without an end.

    `known` has the sizes found before, by key. A run with more rows than then is measured again:
    its last rows may be stored after its footer.
    """
    columns = (RUN.c.id, RUN.c.status, RUN.c.devices)
    row = connection.execute(select(*columns).where(RUN.c.run_id == run_id)).first()
    if row is None or row.status is None:
        return None
    lasts = (
        select(func.max(table.c.number)).where(table.c.run == row.id).scalar_subquery()
        for table in (_SPAN, _TOKEN, _ROUND)
    )
    rows = tuple(last or 0 for last in connection.execute(select(*lasts)).one())
    if row.id not in known or known[row.id].rows != rows:
        known[row.id] = _measured(connection, row.id, rows, tuple(d["name"] for d in row.devices))
    return known[row.id]


def _measured(connection: Connection, key: int, rows: tuple[int, ...], devices: tuple[str, ...]) -> Extent:
    own, later = _SPAN.c.run == key, or_(_SPAN.c.step != 0, _SPAN.c.kind != "prefill")
    spans, end, begin, longest = connection.execute(
        select(
            func.count(),
            func.max(_SPAN.c.end),
            func.max(_SPAN.c.end).filter(~later),
            func.max(_SPAN.c.end - _SPAN.c.start).filter(later),
        ).where(own)
    ).one()
    # each from an index, without a look at the other rows
    start = connection.scalar(select(func.min(_SPAN.c.start)).where(own))
    last = connection.scalar(select(func.max(_TOKEN.c.time)).where(_TOKEN.c.run == key))
    working = select(_SPAN.c.device).distinct().where(own, _SPAN.c.kind != "prefill")
    # the limit ends the search as soon as all devices are found
    names = tuple(connection.scalars(working.limit(len(devices))))
    ends = max(end or 0, last or 0)
    return Extent(key, rows, spans, rows[1], start or 0, begin or 0, ends, longest or 0, devices, names)


def time_of(connection: Connection, size: Extent, number: int) -> int:
    """Return when the span of this number starts, by start; the run's end if it has fewer."""
    starts = select(_SPAN.c.start).where(_SPAN.c.run == size.key).order_by(_SPAN.c.start)
    found = connection.scalar(starts.limit(1).offset(number))
    return size.end if found is None else found


def is_few(connection: Connection, size: Extent, low: int, high: int, most: int) -> bool:
    """Return whether `part` would read at most this many spans of a window."""
    near = select(_SPAN.c.start).where(_SPAN.c.run == size.key, _near(size, low, high)).limit(most + 1)
    return (connection.scalar(select(func.count()).select_from(near.subquery())) or 0) <= most


def part(
    connection: Connection, size: Extent, low: int, high: int, header: Header, footer: Footer | None
) -> RunWindow:
    """Return the rows of [low, high], and those that its decisions and waits depend on."""
    trace = Trace(header, footer=footer)
    near = _near(size, low, high)
    _read(connection, size, trace, Span, [near, (_SPAN.c.start < size.begin) & _PREFILL])
    trace.spans.sort(key=lambda s: s.id)
    working = [s for s in trace.spans if not (s.kind == "prefill" and s.step == 0)]
    since = _range(size, low, high)[0]
    first = connection.scalar(_least_token(size, _TOKEN.c.time >= since)) or 1
    _read(connection, size, trace, Commit, [_TOKEN.c.time.between(since, high)])
    steps = [row.step for row in (*working, *trace.commits)]
    ids = [s.id for s in working]
    own_steps = min(steps, default=0), max(steps, default=-1)
    own_spans = min(ids, default=0), max(ids, default=-1)
    columns = _DECISION.c
    decided = [columns.step.between(*own_steps), columns.draft_span.between(*own_spans)]
    _read(connection, size, trace, Decision, decided)
    for kind in schema.ROWS:
        columns = schema.ROWS[kind].c
        if kind is Part:
            _read(connection, size, trace, kind, [columns.span.between(*own_spans)])
        elif kind not in (Span, Commit, Decision):
            _read(
                connection,
                size,
                trace,
                kind,
                [columns.step.between(*own_steps) if "step" in columns else true()],
            )
    return RunWindow(trace, low, high, _around(connection, size, low, high, first, own_steps[0], header))


def _around(
    connection: Connection, size: Extent, low: int, high: int, number: int, step: int, header: Header
) -> Around:
    """Return what the run has before the commit of a number and the rounds of a step."""
    last = select(_TOKEN.c.sequence, func.max(_TOKEN.c.time)).group_by(_TOKEN.c.sequence)
    commits = connection.execute(last.where(_TOKEN.c.run == size.key, _TOKEN.c.number < number)).all()
    emitted = select(_ROUND.c.sequence, func.sum(_ROUND.c.emitted)).group_by(_ROUND.c.sequence)
    rounds = connection.execute(emitted.where(_ROUND.c.run == size.key, _ROUND.c.step < step)).all()
    since, until = _range(size, low, high)
    steps = select(_ROUND.c.sequence, func.min(_ROUND.c.step), func.max(_ROUND.c.step))
    fed = header.config.get("feed_finished")
    ends = (
        connection.execute(steps.where(_ROUND.c.run == size.key).group_by(_ROUND.c.sequence)) if fed else ()
    )
    return Around(
        number - 1,
        {row[0]: row[1] for row in commits},
        {row[0]: row[1] for row in rounds},
        {row[0]: (row[1], row[2]) for row in ends},
        since if since > size.start else None,
        until if until < size.end else None,
    )


def _least_token(size: Extent, where: ColumnElement[bool]) -> Any:
    return select(func.min(_TOKEN.c.number)).where(_TOKEN.c.run == size.key, where)


def _near(size: Extent, low: int, high: int) -> ColumnElement[bool]:
    """Return the spans that touch the window, and their neighbours: a wait depends on these."""
    return _SPAN.c.start.between(*_range(size, low, high))


def _range(size: Extent, low: int, high: int) -> tuple[int, int]:
    return low - 2 * size.longest, high + size.longest


def _read(
    connection: Connection, size: Extent, trace: Trace, kind: type[Any], either: Sequence[ColumnElement[bool]]
) -> None:
    """Add the rows of a kind for which one of the conditions holds, in the order recorded.

    Each condition is a query without an order: so SQLite uses its index, and reads no other rows.
    """
    table = schema.ROWS[kind]
    columns = [table.c.number, *schema.COLUMNS[kind]]
    rows: list[Any] = []
    for i, condition in enumerate(either):
        where = [table.c.run == size.key, condition, *(~other for other in either[:i])]
        rows += connection.execute(select(*columns).where(*where)).all()
    for row in sorted(rows, key=itemgetter(0)):
        trace.add(kind(*row[1:]))


class Spans(NamedTuple):
    """The spans of one kind and outcome on a device."""

    device: str
    kind: str
    cancelled: bool
    start: Numbers
    end: Numbers


class TimeColumns(NamedTuple):
    """The times of a run's rows."""

    spans: list[Spans]
    """By device and kind, cancelled ones first."""
    tokens: Numbers
    rounds: Numbers
    drafted: Numbers
    accepted: Numbers


class DeviceWork(NamedTuple):
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
    work: list[DeviceWork]
    tokens: list[int]
    drafted: list[int]
    accepted: list[int]


def columns(connection: Connection, run: int, devices: Sequence[str]) -> TimeColumns:
    """Return the columns of a run (its key); ValueError for a damaged time or number."""
    places = {name: i for i, name in enumerate(devices)}
    device = case(places, value=_SPAN.c.device, else_=len(devices)) if devices else literal(0)
    kind, outcome = (type_coerce(_SPAN.c[name], Integer) for name in ("kind", "outcome"))
    style = (device * _CODES + kind) * _CODES + outcome
    start, end, styles = numbers(connection, _SPAN.c.run == run, _SPAN.c.start, _SPAN.c.end, style)
    (tokens,) = numbers(connection, _TOKEN.c.run == run, _TOKEN.c.time)
    rounds = numbers(connection, _ROUND.c.run == run, _ROUND.c.time, _ROUND.c.drafted, _ROUND.c.accepted)
    kinds, outcomes = schema.names(_SPAN.c.kind), schema.names(_SPAN.c.outcome)
    spans = list[Spans]()
    for code in np.unique(styles).tolist():
        place: int = code // _CODES**2
        if place < len(devices):
            name, own = kinds[code // _CODES % _CODES], styles == code
            cancelled = outcomes[code % _CODES] == "cancelled"
            spans.append(Spans(devices[place], name, cancelled, start[own], end[own]))
    spans.sort(key=lambda s: (s.device, s.kind, not s.cancelled))
    return TimeColumns(spans, tokens, *rounds)


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


def bins(known: TimeColumns, size: Extent, low: int, high: int, number: int) -> Bins:
    """Return the window [low, high] as `number` bins: work on each device, and drafts.

    A span is counted in the bin in which it starts; time beyond that bin is carried into the next.
    """
    width = max(1, -(-(high - low) // number))
    counts, work = np.zeros(number, np.int64), list[DeviceWork]()
    for device, kind, cancelled, start, end in known.spans:
        near = (start >= low - size.longest) & (start <= high) & (end > low)
        if near.any():
            begin = np.maximum(start[near], low)
            busy = _summed(begin, np.minimum(end[near], high) - begin, low, width, number)
            counts += _summed(begin, None, low, width, number)
            work.append(DeviceWork(device, kind, cancelled, _carried(busy, width)))
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


class TokenLine(NamedTuple):
    """The tokens of a sequence, in the order committed."""

    ids: Numbers
    times: Numbers


def line(connection: Connection, run: int, sequence: int) -> TokenLine:
    """Return the tokens of a sequence of a run (its key); ValueError for a damaged number."""
    own = (_TOKEN.c.run == run) & (_TOKEN.c.sequence == sequence)
    return TokenLine(*numbers(connection, own, _TOKEN.c.token, _TOKEN.c.time))


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
