"""Checks of a trace that was read: types, closed sets of texts, references between rows."""

from __future__ import annotations

from collections import Counter
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from specscope.engine.errors import shown
from specscope.engine.trace.events import NO_DEVICES, Span
from specscope.engine.trace.header import check_header
from specscope.engine.trace.jsonl import check_types
from specscope.engine.trace.ranges import LONGEST_DRAFT
from specscope.traces.schema import ROWS, RUN, Code

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sqlalchemy import Table

    from specscope.engine.trace.events import Event
    from specscope.engine.trace.trace import Trace

MOST_FORKS = 4096
"""Branches of a round: each is a cell of a table on the page."""


def check(trace: Trace) -> None:
    """Raise ValueError for a wrong type, a text outside its closed set, or a broken reference."""
    check_header(trace.header)
    check_rows(trace)


def check_rows(trace: Trace, spans: Collection[int] = (), documents: Collection[int] = ()) -> None:
    """Check rows and footer; `spans` and `documents` are the numbers of earlier ones."""
    for kind, rows in groupby([*trace.rows(), *filter(None, [trace.footer])], type):
        events = list(rows)
        check_types(events)
        _check_codes(kind, events)
    devices = {d.name for d in trace.header.devices}
    for fault in _faults(trace, devices, spans, documents):
        raise ValueError(fault)


def _check_codes(kind: type[Any], rows: Sequence[Event]) -> None:
    table: Table = ROWS.get(kind, RUN)
    for column in table.c:
        if isinstance(column.type, Code):
            for row in rows:
                if (value := getattr(row, column.name)) not in column.type.names:
                    named = ", ".join(name or '""' for name in column.type.names)
                    raise ValueError(
                        f"{column.name} of a {row.tag} is {shown(value)}; it must be one of {named}"
                    )


def _faults(
    trace: Trace, devices: set[str], spans: Collection[int], documents: Collection[int]
) -> Iterator[str]:
    """Yield a message for each row that contradicts another row or the header."""
    sequences = len(trace.header.prompts)
    ids = {span.id for span in trace.spans}
    if len(ids) < len(trace.spans) or any(number in spans for number in ids):
        yield "two spans have the same id"
    if trace.footer and max(len(trace.footer.texts), len(trace.footer.reasons)) > sequences:
        yield f"the footer has more texts or reasons than the header's {sequences} prompts"
    for row in chain(trace.spans, (row for row in trace.occupancy if row.device not in NO_DEVICES)):
        if row.device not in devices:
            yield f"device {shown(row.device)} is not among the header's"
    decoded = (trace.rounds, trace.decisions, trace.commits, trace.copies, trace.pooled)
    drafted = (trace.forks, trace.forecasts, trace.chains)
    for row in chain(trace.spans, *decoded, *drafted):
        batch = row.sequence == -1 and isinstance(row, Span)
        if not batch and not 0 <= row.sequence < sequences:
            yield f"sequence {row.sequence} is not among the header's {sequences} prompts"
    for part in trace.parts:
        if part.span not in ids and part.span not in spans:
            yield f"span {part.span} of a part is not in the trace"
        if part.start > part.end:
            yield f"a part of span {part.span} lasts from {part.start} to {part.end}"
    for row in trace.pooled:
        if not all((*row.tried, *row.gained)):
            yield f"step {row.step} has an n-gram without tokens"
    for (_, step), number in Counter((fork.sequence, fork.step) for fork in trace.forks).items():
        if number > MOST_FORKS:
            yield f"step {step} has {number} branches; at most {MOST_FORKS} are read"
    for row in trace.rounds:
        if row.accepted > row.drafted:
            yield f"step {row.step} accepted {row.accepted} of {row.drafted} drafted tokens"
    for row in trace.chains:
        if row.drafted > row.asked:
            yield f"a draft of {row.drafted} tokens was asked for {row.asked}"
    for row in trace.windows:
        if row.start > row.end:
            yield f"a window lasts from {row.start} to {row.end}"
        if (row.accepted or 0) > (row.drafted if row.drafted is not None else row.accepted or 0):
            yield f"a window accepted {row.accepted} of {row.drafted} drafted tokens"
        if len(row.places) > LONGEST_DRAFT:
            yield f"a window has {len(row.places)} places; at most {LONGEST_DRAFT} are read"
    texts = {d.document for d in trace.documents}
    for copy in trace.copies:
        if copy.document != -1 and copy.document not in texts and copy.document not in documents:
            yield f"document {copy.document} of a copy is not in the trace"
        if copy.start < copy.match:
            yield f"a copy has start {copy.start}, match {copy.match} and length {copy.length}"
    for span in trace.spans:
        if span.start > span.end:
            yield f"span {span.id} lasts from {span.start} to {span.end}"
