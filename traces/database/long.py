"""Long stored runs: the columns of all spans and rounds, and the rows of a range of rounds.

All times are nanoseconds since the run's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from sqlalchemy import Integer, case, func, literal, or_, select, type_coerce

from specscope.engine.trace.events import Commit, Decision, Forked, Occupancy, Part, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.traces.database import schema
from specscope.traces.database.schema import RUN
from specscope.traces.facts.fates import JUDGED, useful_glue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from sqlalchemy import ColumnElement, Connection

    from specscope.engine.trace.events import Header

    Numbers: TypeAlias = NDArray[np.int64]

_SPAN, _TOKEN, _ROUND = schema.ROWS[Span], schema.ROWS[Commit], schema.ROWS[Round]
_DECISION, _FORK = schema.ROWS[Decision], schema.ROWS[Forked]
_PREFILL = (_SPAN.c.kind == "prefill") & (_SPAN.c.step == 0)

BESIDE = 2
"""Further steps read on either side of a range. They tell what became of its drafts; two batches
that take turns need two."""


class Extent(NamedTuple):
    """The size of a run that has ended."""

    key: int
    """Of the run's row; a key is never used again."""
    spans: int
    tokens: int
    start: int
    begin: int
    """When decoding begins."""
    end: int


class SpanTable(NamedTuple):
    """The spans of a run on its devices, by device, start, end and id; texts as codes."""

    id: Numbers
    device: Numbers
    kind: Numbers
    start: Numbers
    end: Numbers
    step: Numbers
    rows: Numbers
    context: Numbers
    outcome: Numbers
    judged: Numbers
    """The best outcome of its draft's tokens, as an index into `JUDGED`."""


KINDS, OUTCOMES, MODES = (schema.names(c) for c in (_SPAN.c.kind, _SPAN.c.outcome, _ROUND.c.mode))


class RangeRows(NamedTuple):
    """The rows of a range of rounds."""

    trace: Trace
    """Has the rows of steps on either side, too."""
    first: int
    last: int
    before: int
    """Number of the run's commits before the first one of the range."""


def extent(connection: Connection, run_id: str) -> Extent | None:
    """Return the size of a stored run; None for an unknown run, and for one without an end."""
    row = connection.execute(select(RUN.c.id, RUN.c.status).where(RUN.c.run_id == run_id)).first()
    if row is None or row.status is None:
        return None
    found = select(
        func.count(), func.min(_SPAN.c.start), func.max(_SPAN.c.end).filter(_PREFILL), func.max(_SPAN.c.end)
    )
    spans, start, begin, end = connection.execute(found.where(_SPAN.c.run == row.id)).one()
    committed = select(func.count(), func.max(_TOKEN.c.time)).where(_TOKEN.c.run == row.id)
    tokens, last = connection.execute(committed).one()
    return Extent(row.id, spans, tokens, start or 0, begin or 0, max(end or 0, last or 0))


def spans(connection: Connection, key: int, header: Header) -> SpanTable:
    """Return the spans of a run; ValueError for a damaged number."""
    c, names = _SPAN.c, {device.name: i for i, device in enumerate(header.devices)}
    device = case(names, value=c.device, else_=len(names)) if names else literal(0)
    plain = (c.start, c.end, c.step, c.rows, c.context)
    coded = (_code(c.kind), *plain, _code(c.outcome))
    *own, rank = numbers(connection, c.run == key, c.id, device, *coded, c.rank)
    _check_codes(own[2], KINDS)
    _check_codes(own[8], OUTCOMES)
    table = SpanTable._make((*own, _judged(connection, key, own[0] - rank, header)))
    order = np.lexsort((table.id, table.end, table.start, table.device))
    return SpanTable._make(column[order] for column in table)


def _judged(connection: Connection, key: int, leaders: Numbers, header: Header) -> Numbers:
    """Return the best outcome of the tokens that each span drafted, by its leader's id."""
    c = _DECISION.c
    drafts, codes = numbers(connection, c.run == key, c.draft_span, _code(c.outcome))
    drafts, codes = drafts[drafts >= 0], codes[drafts >= 0]
    _check_codes(codes, names := schema.names(c.outcome))
    ranks = np.array([JUDGED.index(name) if name in JUDGED else 0 for name in names])
    glue = np.array(sorted(_useful(connection, key, header)), dtype=np.int64)
    ids, place = np.unique(np.concatenate((drafts, glue)), return_inverse=True)
    best = np.zeros(len(ids) + 1, np.int64)  # the last one is that of spans without a decision
    np.maximum.at(best, place, np.concatenate((ranks[codes], np.full(len(glue), len(JUDGED) - 1))))
    return best[np.where(np.isin(leaders, ids), np.searchsorted(ids, leaders), len(ids))]


def _useful(connection: Connection, key: int, header: Header) -> set[int]:
    few = Trace(header)
    read(connection, key, few, Span, _SPAN.c.kind == "glue")
    if few.spans:
        read(connection, key, few, Forked, _FORK.c.taken)
    return useful_glue(few)


def rounds(connection: Connection, key: int) -> dict[str, Numbers]:
    """Return the columns of a run's rounds, in the order recorded; `mode` as a code."""
    columns = {c.name: c for c in schema.COLUMNS[Round]} | {"mode": _code(_ROUND.c.mode)}
    found = dict(zip(columns, numbers(connection, _ROUND.c.run == key, *columns.values()), strict=True))
    _check_codes(found["mode"], MODES)
    return found


def _check_codes(codes: Numbers, names: Sequence[str]) -> None:
    if ((codes < 0) | (codes >= len(names))).any():
        raise ValueError(f"a code is not in 0 to {len(names) - 1}")


def _code(column: ColumnElement[Any]) -> ColumnElement[Any]:
    return type_coerce(column, Integer)


def first_steps(connection: Connection, key: int, most: int) -> int:
    """Return the last step of the run's first `most` rounds."""
    steps = select(_ROUND.c.step).where(_ROUND.c.run == key).order_by(_ROUND.c.number).limit(most)
    return connection.scalar(select(func.max(steps.subquery().c.step))) or 0


def are_many(connection: Connection, key: int, first: int, last: int, most: int) -> bool:
    """Return whether a range of steps has more than this many rounds."""
    own = select(_ROUND.c.step).where(_ROUND.c.run == key, _ROUND.c.step.between(first, last)).limit(most + 1)
    return (connection.scalar(select(func.count()).select_from(own.subquery())) or 0) > most


def rows_of(connection: Connection, key: int, trace: Trace, first: int, last: int) -> RangeRows:
    """Add the rows of steps to `trace`; and what has no step or span, such as texts of tokens."""
    steps = (max(0, first - BESIDE), last + BESIDE)
    before = select(func.max(_TOKEN.c.number)).where(_TOKEN.c.run == key, _TOKEN.c.step < steps[0])
    latest = connection.scalars(before.group_by(_TOKEN.c.sequence)).all()
    for kind, table in schema.ROWS.items():
        columns = table.c
        if kind is Span:
            read(connection, key, trace, kind, or_(columns.step.between(*steps), _PREFILL))
        elif kind is Commit:  # the gap before a token begins with the commit before it
            near = or_(columns.step.between(*steps), columns.number.in_(latest))
            read(connection, key, trace, kind, near)
        elif "step" in columns:
            read(connection, key, trace, kind, columns.step.between(*steps))
        elif "span" not in columns:
            read(connection, key, trace, kind)
    commits = select(func.min(_TOKEN.c.number)).where(_TOKEN.c.run == key, _TOKEN.c.step >= first)
    return RangeRows(trace, first, last, (connection.scalar(commits) or 1) - 1)


def spans_and_rounds(connection: Connection, key: int, trace: Trace) -> Trace:
    """Add the run's spans and rounds to `trace`, with layers, loads and the last commit."""
    for kind in (Span, Round, Part, Occupancy):
        read(connection, key, trace, kind)
    last = select(func.max(_TOKEN.c.number)).where(_TOKEN.c.run == key).scalar_subquery()
    read(connection, key, trace, Commit, _TOKEN.c.number == last)
    return trace


def read(
    connection: Connection, key: int, trace: Trace, kind: type[Any], *where: ColumnElement[bool]
) -> None:
    """Add rows of a kind to a trace, in the order recorded."""
    table = schema.ROWS[kind]
    # a sum keeps SQLite from reading all rows in their order where a condition has an index
    order = table.c.number + 0 if where else table.c.number
    rows = select(*schema.COLUMNS[kind]).where(table.c.run == key, *where).order_by(order)
    for values in connection.execute(rows).all():
        trace.add(kind(*values))


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


class StoredOutput(NamedTuple):
    """What a stored run wrote."""

    header: Header
    ids: list[list[int]]
    """The tokens of each sequence, in the order committed."""
    began: list[int]
    """When the first of them was committed, ns since the run's start; 0 without tokens."""

    def token_ids(self, sequence: int) -> list[int]:
        return self.ids[sequence] if sequence >= 0 else []


def output(connection: Connection, key: int, header: Header) -> StoredOutput:
    """Return what a run wrote; ValueError for a damaged number."""
    columns = (_TOKEN.c.sequence, _TOKEN.c.token, _TOKEN.c.time)
    sequences, ids, times = numbers(connection, _TOKEN.c.run == key, *columns)
    own = [sequences == i for i in range(len(header.prompt_ids))]
    began = [int(times[part][0]) if part.any() else 0 for part in own]
    return StoredOutput(header, [ids[part].tolist() for part in own], began)
