"""The document of runs whose beginning is drawn; the figures are those of whole runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from specscope.engine.trace.trace import Trace
from specscope.traces.view.aligned import aligned
from specscope.traces.view.document import Document, RunView, sections
from specscope.traces.waiting import timeline, working_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

WHOLE = ("headline", "hits", "forecast_sums", "note")
"""Sections of the beginning's run that are sums over the whole run."""
_ROUNDS = ("decisions", "copies", "pooled", "forks", "forecasts", "chains")
"""Rows that belong to a round, and have no time."""


def beginning(trace: Trace, end: int) -> Trace:
    """Return the rows of a trace until `end`, in nanoseconds, with its header and footer."""
    cut = Trace(trace.header, pieces=trace.pieces, documents=trace.documents, footer=trace.footer)
    cut.spans = [span for span in trace.spans if span.end <= end]
    cut.rounds = [row for row in trace.rounds if row.time <= end]
    cut.commits = [row for row in trace.commits if row.time <= end]
    cut.occupancy = [row for row in trace.occupancy if row.time <= end]
    cut.parts = [row for row in trace.parts if row.end <= end]
    known = {(row.step, row.sequence) for row in cut.rounds}
    for name in _ROUNDS:
        setattr(cut, name, [row for row in getattr(trace, name) if (row.step, row.sequence) in known])
    return cut


def end_of(traces: Sequence[Trace], spans: int) -> int:
    """Return the time until which the runs have about so many spans together."""
    ends = sorted(span.end for trace in traces for span in trace.spans)
    return ends[min(spans, len(ends)) - 1] if ends else 0


def of_beginning(document: Document, traces: Sequence[Trace], end: int, *, redact_prompt: bool) -> Document:
    """Return the document of these runs with the rows until `end` only."""
    cuts = [beginning(trace, end) for trace in traces]
    runs = list[RunView]()
    for run, trace, cut in zip(document["runs"], traces, cuts, strict=True):
        found = cast("dict[str, Any]", sections(cut, timeline(cut), redact_prompt, working_devices(trace)))
        kept = {name: cast("dict[str, Any]", run)[name] for name in WHOLE}
        runs.append(cast("RunView", {**run, **found, **kept}))
    axis = document["axis"] | {"max": max((run["to"] for run in runs), default=0.0)}
    return cast("Document", {**document, "axis": axis, "aligned": aligned(cuts), "runs": runs})
