"""The beginning of runs: their rows until a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specscope.engine.trace.events import LISTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.trace import Trace


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
