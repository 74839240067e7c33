"""Fuzzy drafts (EasySpec): their forwards, and when each device computed which layer."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import columns_of, section

if TYPE_CHECKING:
    from specscope.engine.trace.events import Part, Span
    from specscope.engine.trace.trace import Trace

_DRAFTING = frozenset({"calibrate", "draft"})


class FuzzySpanColumns(TypedDict):
    """A draft's forwards, as spans of the leading device."""

    id: list[int]
    kind: list[str]
    start: list[float]
    end: list[float]
    rows: list[int]


class PartColumns(TypedDict):
    """The parts of one fuzzy forward, on all devices."""

    rank: list[int]
    """Index in `LayersView.devices`."""
    kind: list[str]
    layer: list[int]
    start: list[float]
    end: list[float]


class FuzzyDraftView(TypedDict):
    """The fuzzy draft of a step."""

    step: int
    shown: int
    spans: FuzzySpanColumns
    parts: PartColumns


class LayersView(TypedDict):
    """The fuzzy drafts of a run."""

    devices: list[str]
    groups: list[list[int]]
    """[first layer, last layer] of each group whose attention outputs were exchanged together."""
    rounds: list[FuzzyDraftView]


@section("layers", "layers", one=True, need="spans")
def layers(trace: Trace) -> LayersView | None:
    parts: dict[int, list[Part]] = {}
    for part in trace.parts:
        parts.setdefault(part.span, []).append(part)
    steps: dict[int, list[Span]] = {}
    for span in sorted(trace.spans, key=lambda s: s.id):
        if span.model == "drafter" and span.kind in _DRAFTING:
            steps.setdefault(span.step, []).append(span)
    drafts = [draft for step, spans in steps.items() if (draft := _draft(trace, step, spans, parts))]
    if not drafts:
        return None
    labels = {d.name: d.label for d in trace.header.devices}
    drafting = {s.rank: labels[s.device] for spans in steps.values() for s in spans if s.id in parts}
    return {
        "devices": [drafting[rank] for rank in sorted(drafting)],
        "groups": _groups(drafts[0]["parts"]),
        "rounds": drafts,
    }


def _draft(trace: Trace, step: int, spans: list[Span], parts: dict[int, list[Part]]) -> FuzzyDraftView | None:
    lead = [s for s in spans if s.rank == 0]
    fuzzy = {s.id - s.rank for s in spans if s.id in parts}
    shown = next((s.id for s in lead if s.id in fuzzy), None)
    if shown is None:
        return None
    clock = decoding_clock(trace)
    rows = [(s.rank, p) for s in spans if s.id - s.rank == shown for p in parts.get(s.id, ())]
    return {
        "step": step,
        "shown": shown,
        "spans": columns_of(
            FuzzySpanColumns,
            lead,
            start=[clock(s.start) for s in lead],
            end=[clock(s.end) for s in lead],
        ),
        "parts": columns_of(
            PartColumns,
            [part for _, part in rows],
            rank=[rank for rank, _ in rows],
            start=[clock(part.start) for _, part in rows],
            end=[clock(part.end) for _, part in rows],
        ),
    }


def _groups(parts: PartColumns) -> list[list[int]]:
    rows = list(zip(parts["kind"], parts["layer"], strict=True))
    starts = sorted({layer for kind, layer in rows if kind == "exchange"})
    groups = [[start, start] for start in starts]
    for layer in sorted({layer for kind, layer in rows if kind == "attention"}):
        if group := bisect_right(starts, layer):
            groups[group - 1][1] = layer
    return groups
