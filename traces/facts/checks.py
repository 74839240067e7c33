"""Checks of a trace that was read: its rows, and references between them."""

from __future__ import annotations

from collections import Counter
from itertools import chain, groupby
from typing import TYPE_CHECKING

from specscope.engine.errors import shown
from specscope.engine.trace.events import LISTS, NO_DEVICES, Occupancy, Row, Span, types_of
from specscope.engine.trace.header import check_header
from specscope.engine.trace.jsonl import check_types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from specscope.engine.trace.trace import Trace

MOST_FORKS = 4096
"""Branches of a round: each is a cell of a table on the page."""


def check(trace: Trace) -> None:
    """Raise ValueError for a wrong type, a text outside its closed set, or a broken reference."""
    check_header(trace.header)
    check_rows(trace)


def check_rows(trace: Trace, spans: Collection[int] = (), documents: Collection[int] = ()) -> None:
    """Check rows and footer; `spans` and `documents` are the numbers of earlier ones."""
    for _, rows in groupby([*trace.rows(), *filter(None, [trace.footer])], type):
        check_types([*rows])
    own = (fault for kind in LISTS for fault in _own_faults(trace, kind))
    for fault in chain(own, _faults(trace, spans, documents)):
        raise ValueError(fault)


def _own_faults(trace: Trace, kind: type[Row]) -> Iterator[str]:
    """Yield a message for each row that contradicts itself or the header."""
    rows, header = getattr(trace, LISTS[kind]), trace.header
    names = types_of(kind)
    if "device" in names:
        known = {d.name for d in header.devices}.union(NO_DEVICES if kind is Occupancy else ())
        for device in {row.device for row in rows} - known:
            yield f"device {shown(device)} is not among the header's"
    if "sequence" in names:
        known = range(-1 if kind is Span else 0, len(header.prompts))
        for sequence in {row.sequence for row in rows}.difference(known):
            yield f"sequence {sequence} is not among the header's {len(header.prompts)} prompts"
    if kind.fault is not Row.fault:
        yield from filter(None, (row.fault() for row in rows))


def _faults(trace: Trace, spans: Collection[int], documents: Collection[int]) -> Iterator[str]:
    """Yield a message for each row that contradicts rows of other kinds, or too many others."""
    sequences = len(trace.header.prompts)
    ids = {span.id for span in trace.spans}
    if len(ids) < len(trace.spans) or any(number in spans for number in ids):
        yield "two spans have the same id"
    if trace.footer and max(len(trace.footer.texts), len(trace.footer.reasons)) > sequences:
        yield f"the footer has more texts or reasons than the header's {sequences} prompts"
    for row in (*trace.parts, *trace.routed):
        if row.span not in ids and row.span not in spans:
            yield f"span {row.span} of a {row.tag} row is not in the trace"
    for (_, step), number in Counter((fork.sequence, fork.step) for fork in trace.forks).items():
        if number > MOST_FORKS:
            yield f"step {step} has {number} branches; at most {MOST_FORKS} are read"
    texts = {d.document for d in trace.documents}.union(documents, {-1})
    for copy in trace.copies:
        if copy.document not in texts:
            yield f"document {copy.document} of a copy is not in the trace"
