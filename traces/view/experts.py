"""Mixtures of experts: how many experts a forward reads, by its rows, and how long it takes."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.joined import spans_by_id
from specscope.traces.view import section

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

MOST = 200
"""Numbers of rows that are shown, the smallest ones: a foreign file may have a million."""


class ExpertsView(TypedDict):
    """The forwards of a model on a device that had as many rows; the numbers are their means."""

    model: str
    device: str
    rows: int
    forwards: int
    experts: float
    held: int
    """Experts that the model has on the device."""
    each: float
    """Experts read per row: what each drafted token costs."""
    ms: float


@section("experts", "experts", need="sums")
def experts(trace: Trace) -> list[ExpertsView]:
    spans = spans_by_id(trace)
    labels = {device.name: device.label for device in trace.header.devices}
    found = defaultdict[tuple[str, str, int, int], list[tuple[int, int]]](list)
    for read in trace.routed:
        span = spans.get(read.span)
        if span and span.rows > 0 and span.outcome == "done":
            key = span.model, labels[span.device], span.rows, read.held
            found[key].append((read.experts, span.end - span.start))
    return [
        {
            "model": model,
            "device": device,
            "rows": rows,
            "forwards": len(forwards),
            "experts": (mean := fmean(count for count, _ in forwards)),
            "held": held,
            "each": mean / rows,
            "ms": fmean(time for _, time in forwards) / 1e6,
        }
        for (model, device, rows, held), forwards in sorted(found.items())[:MOST]
    ]
