"""Parts of a stored run: the rows of a window of time. `traces.bins` has windows of too many rows.

All times are nanoseconds since the run's start.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, or_, select, true

from engine.trace.events import Commit, Decision, Document, Occupancy, Part, Piece, Round, Span
from engine.trace.trace import Trace
from traces import schema
from traces.schema import RUN
from traces.waiting import Around

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import ColumnElement, Connection

    from engine.trace.events import Footer, Header

_SPAN, _TOKEN, _ROUND = schema.ROWS[Span], schema.ROWS[Commit], schema.ROWS[Round]
_DECISION = schema.ROWS[Decision]
_PREFILL = (_SPAN.c.kind == "prefill") & (_SPAN.c.step == 0)


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


class Window(NamedTuple):
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
) -> Window:
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
        if kind in (Piece, Document, Occupancy):
            _read(connection, size, trace, kind, [true()])
        elif kind is Part:
            _read(connection, size, trace, kind, [columns.span.between(*own_spans)])
        elif kind not in (Span, Commit, Decision):
            _read(connection, size, trace, kind, [columns.step.between(*own_steps)])
    return Window(trace, low, high, _around(connection, size, low, high, first, own_steps[0], header))


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
