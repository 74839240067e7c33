"""Parts of a stored run for a window of time: its rows, or shares of bins where it has too many.

All times are nanoseconds since the run's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Integer, case, func, literal_column, or_, select, type_coerce

from engine.trace.events import Commit, Decision, Document, Occupancy, Piece, Round, Span
from engine.trace.events import Part as PartRow
from engine.trace.trace import Trace
from traces import schema
from traces.schema import RUN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import ColumnElement, Connection

    from engine.trace.events import Footer, Header

_SPAN, _TOKEN, _ROUND = schema.ROWS[Span], schema.ROWS[Commit], schema.ROWS[Round]
_DECISION = schema.ROWS[Decision]
_CODES = 64
"""More than there are codes of a kind or an outcome."""
_PREFILL = (_SPAN.c.kind == "prefill") & (_SPAN.c.step == 0)


class Extent(NamedTuple):
    """The size of a run that has ended."""

    key: int
    """Of the run's row; a key is never used again."""
    spans: int
    tokens: int
    start: int
    """When its first span starts."""
    begin: int
    """When decoding begins."""
    end: int
    """Of the last span or commit."""
    longest: int
    """Length of the longest span other than a prefill before decoding."""
    devices: tuple[str, ...]
    """The devices that did more than prefill."""


class Part(NamedTuple):
    """The rows of a run in [low, high]."""

    trace: Trace
    low: int
    high: int
    first: int
    """Number of commits before the first one of the part."""
    before: dict[int, int]
    """Time of the last commit before the part, by sequence."""


class Work(NamedTuple):
    """The work of one kind on a device."""

    device: str
    kind: str
    cancelled: bool
    busy: list[int]
    """Nanoseconds in each bin."""


class Bins(NamedTuple):
    """A window in bins of equal width."""

    low: int
    width: int
    spans: list[int]
    """Spans that start in each bin."""
    work: list[Work]
    tokens: list[int]
    """Committed tokens of each bin."""
    drafted: list[int]
    """Drafted tokens of the rounds in each bin."""
    accepted: list[int]


def extent(connection: Connection, run_id: str, known: dict[int, Extent]) -> Extent | None:
    """Return the size of a stored run; None for an unknown run, and for one without an end.

    Args:
        connection: A read transaction.
        run_id: The run.
        known: The sizes found before, by key; a run that has ended never changes.
    """
    row = connection.execute(select(RUN.c.id, RUN.c.status).where(RUN.c.run_id == run_id)).first()
    if row is None or row.status is None:
        return None
    if row.id not in known:
        known[row.id] = _measured(connection, row.id)
    return known[row.id]


def _measured(connection: Connection, key: int) -> Extent:
    own, length = _SPAN.c.run == key, _SPAN.c.end - _SPAN.c.start
    spans, start, end, begin, longest = connection.execute(
        select(
            func.count(),
            func.min(_SPAN.c.start),
            func.max(_SPAN.c.end),
            func.max(case((_PREFILL, _SPAN.c.end))),
            func.max(case((~_PREFILL, length))),
        ).where(own)
    ).one()
    tokens, last = connection.execute(
        select(func.count(), func.max(_TOKEN.c.time)).where(_TOKEN.c.run == key)
    ).one()
    names = connection.scalars(select(_SPAN.c.device).distinct().where(own, _SPAN.c.kind != "prefill"))
    ends = max(end or 0, last or 0)
    return Extent(key, spans, tokens, start or 0, begin or 0, ends, longest or 0, tuple(names))


def time_of(connection: Connection, size: Extent, number: int) -> int:
    """Return when the span of this number starts, by start; the run's end if it has fewer."""
    starts = select(_SPAN.c.start).where(_SPAN.c.run == size.key).order_by(_SPAN.c.start)
    found = connection.scalar(starts.limit(1).offset(number))
    return size.end if found is None else found


def count(connection: Connection, size: Extent, low: int, high: int) -> int:
    """Return the number of spans that `part` would read."""
    return connection.scalar(select(func.count()).where(_near(size, low, high))) or 0


def part(
    connection: Connection, size: Extent, low: int, high: int, header: Header, footer: Footer | None
) -> Part:
    """Return the rows of a window, with those that the decisions and waits in it depend on.

    Args:
        connection: A read transaction.
        size: Of the run.
        low: Start of the window.
        high: Its end.
        header: The run's header.
        footer: Its footer.
    """
    trace = Trace(header, footer=footer)
    before_decoding = (_SPAN.c.run == size.key) & (_SPAN.c.start < size.begin) & _PREFILL
    _read(connection, size, trace, Span, or_(_near(size, low, high), before_decoding))
    trace.spans.sort(key=lambda s: s.id)
    working = [s for s in trace.spans if not (s.kind == "prefill" and s.step == 0)]
    first = connection.scalar(_least_token(size, _TOKEN.c.time >= low)) or 1
    _read(connection, size, trace, Commit, _TOKEN.c.time.between(low, high))
    steps = [row.step for row in (*working, *trace.commits)]
    least, most = min(steps, default=0), max(steps, default=-1)
    ids = [s.id for s in working]
    drafted = _DECISION.c.draft_span.between(min(ids, default=0), max(ids, default=-1))
    _read(connection, size, trace, Decision, or_(_DECISION.c.step.between(least, most), drafted))
    for kind in schema.ROWS:
        if kind in (Piece, Document, Occupancy):
            _read(connection, size, trace, kind)
        elif kind is PartRow:
            own = schema.ROWS[kind].c.span
            _read(connection, size, trace, kind, own.between(min(ids, default=0), max(ids, default=-1)))
        elif kind not in (Span, Commit, Decision):
            _read(connection, size, trace, kind, schema.ROWS[kind].c.step.between(least, most))
    before = select(_TOKEN.c.sequence, func.max(_TOKEN.c.time)).group_by(_TOKEN.c.sequence)
    earlier = connection.execute(before.where(_TOKEN.c.run == size.key, _TOKEN.c.number < first)).all()
    return Part(trace, low, high, first - 1, {row[0]: row[1] for row in earlier})


def _least_token(size: Extent, where: ColumnElement[bool]) -> Any:
    return select(func.min(_TOKEN.c.number)).where(_TOKEN.c.run == size.key, where)


def _near(size: Extent, low: int, high: int) -> ColumnElement[bool]:
    """Return the spans that touch the window, and their neighbours: a wait depends on these."""
    near = _SPAN.c.start.between(low - 2 * size.longest, high + size.longest)
    return (_SPAN.c.run == size.key) & near


def _read(
    connection: Connection, size: Extent, trace: Trace, kind: type[Any], *where: ColumnElement[bool]
) -> None:
    table = schema.ROWS[kind]
    columns = [table.c[name] for name in schema.FIELDS[kind]]
    rows = select(*columns).where(table.c.run == size.key, *where).order_by(table.c.number)
    for values in connection.execute(rows).all():
        trace.add(kind(*values))


def bins(connection: Connection, size: Extent, low: int, high: int, number: int) -> Bins:
    """Return a window as bins: the work on each device, and the fate of its drafts.

    A span is counted in the bin in which it starts; time beyond that bin is carried into the next.

    Args:
        connection: A read transaction.
        size: Of the run.
        low: Start of the window.
        high: Its end.
        number: How many bins.
    """
    width = max(1, -(-(high - low) // number))
    start, codes = _SPAN.c.start, [type_coerce(_SPAN.c[name], Integer) for name in ("kind", "outcome")]
    place = ((func.max(start, low) - low) // width).label("place")
    time = func.sum(func.min(_SPAN.c.end, high) - func.max(start, low))
    # one number is sorted faster than four columns
    look = literal_column("place") * _CODES**2 + codes[0] * _CODES + codes[1]
    near = (start + 0).between(low - size.longest, high)  # + 0: a scan is faster than the index
    spans = connection.execute(
        select(_SPAN.c.device, _SPAN.c.kind, _SPAN.c.outcome, place, func.count(), time)
        .where(_SPAN.c.run == size.key, near, _SPAN.c.end > low)
        .group_by(look, _SPAN.c.device)
    ).all()
    counts = [0] * number
    work: dict[tuple[str, str, str], list[int]] = {}
    for device, kind, outcome, i, n, busy in spans:
        counts[min(i, number - 1)] += n
        work.setdefault((device, kind, outcome), [0] * number)[min(i, number - 1)] += busy
    rows = [Work(d, k, o == "cancelled", list(_carried(v, width))) for (d, k, o), v in sorted(work.items())]
    tokens = _counted(connection, size, low, high, number, width)
    return Bins(low, width, counts, rows, *tokens)


def _carried(busy: Iterable[int], width: int) -> Iterable[int]:
    over = 0
    for time in busy:
        yield min(width, time + over)
        over = max(0, time + over - width)


def _counted(
    connection: Connection, size: Extent, low: int, high: int, number: int, width: int
) -> tuple[list[int], list[int], list[int]]:
    """Return the tokens, the drafted tokens and the accepted ones of each bin."""
    columns = [[0] * number for _ in range(3)]
    sums = ((_TOKEN, (func.count(),)), (_ROUND, (func.sum(_ROUND.c.drafted), func.sum(_ROUND.c.accepted))))
    for table, values in sums:
        place = ((table.c.time - low) // width).label("place")
        own = table.c.run == size.key, table.c.time.between(low, high)
        targets = columns[:1] if table is _TOKEN else columns[1:]
        for i, *found in connection.execute(select(place, *values).where(*own).group_by("place")).all():
            for column, value in zip(targets, found, strict=True):
                column[min(i, number - 1)] += value
    return columns[0], columns[1], columns[2]
