"""A report that draws only the first spans; its figures are those of whole runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from specscope.engine.trace.events import LISTS
from specscope.traces.facts.waiting import timeline, working_devices
from specscope.traces.view import all_sections
from specscope.traces.view.aligned import aligned
from specscope.traces.view.document import RunView, ViewDocument, sections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.trace import Trace

WHOLE = ("headline", "note")
"""Of the whole run, as sums over its rows are."""


def beginning(trace: Trace, end: int) -> Trace:
    """Return the rows of a trace until `end`, in nanoseconds, with its header and footer."""
    rounds = {(row.step, row.sequence) for row in trace.rounds if row.time <= end}
    return replace(trace, **{name: _until(end, rounds, getattr(trace, name)) for name in LISTS.values()})


def _until(end: int, rounds: set[tuple[int, int]], rows: list[Any]) -> list[Any]:
    """Return the rows of a kind that end or happen until `end`, or belong to one of the rounds."""
    for name in ("end", "time"):
        if rows and hasattr(rows[0], name):
            return [row for row in rows if getattr(row, name) <= end]
    return [row for row in rows if not hasattr(row, "step") or (row.step, row.sequence) in rounds]


def end_of(traces: Sequence[Trace], spans: int) -> int:
    """Return the time until which the runs have about so many spans together."""
    ends = sorted(span.end for trace in traces for span in trace.spans)
    return ends[min(spans, len(ends)) - 1] if ends else 0


def of_beginning(
    document: ViewDocument, traces: Sequence[Trace], end: int, *, redact_prompt: bool
) -> ViewDocument:
    """Return the document of these runs with the rows until `end` only."""
    cuts = [beginning(trace, end) for trace in traces]
    whole = [name for name, section in all_sections().items() if section.need == "sums"]
    runs = list[RunView]()
    for run, trace, cut in zip(document["runs"], traces, cuts, strict=True):
        found = cast("dict[str, Any]", sections(cut, timeline(cut), redact_prompt, working_devices(trace)))
        kept = {name: cast("dict[str, Any]", run)[name] for name in (*WHOLE, *whole)}
        runs.append(cast("RunView", {**run, **found, **kept}))
    axis = document["axis"] | {"max": max((run["to"] for run in runs), default=0.0)}
    return cast("ViewDocument", {**document, "axis": axis, "aligned": aligned(cuts), "runs": runs})
