"""The rows of each KV cache by step: kept, rolled back, fuzzy, calibrated, padded.

A forward's span has the rows that it fed and the rows that it found cached. Fewer found rows than
the forward before it left are a rollback; more are rows that no span of the device wrote, whose
origin is unknown. The last forward's rows have no successor that shows their fate. Rows are counted
in the order written: of a tree, the count of kept nodes is exact, not their places.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, TypedDict

from traces.imported import origin
from traces.view.clock import decoding_clock
from traces.view.packings import packings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.trace.events import Span
    from engine.trace.trace import Trace
    from traces.view.packings import PackingView

STATES: tuple[str, ...] = ("valid", "new", "calibrated", "fuzzy", "lost", "lost-fuzzy", "padded", "unknown")
"""The states of rows, in the order shown.

`valid`: cached before the step; `new`: written in it; `calibrated`: written by an exact forward
before a fuzzy draft; `fuzzy`: written by a fuzzy forward; `lost`, `lost-fuzzy`: rolled back after
the step or in it; `padded`: rows that the vanilla method adds to a batch; `unknown`: rows whose
origin or fate the trace does not have."""
_FORWARDS = frozenset({"prefill", "draft", "verify", "pre-verify", "calibrate"})
_Segment = tuple[str, int]
"""(provenance, rows): `new`, `calibrated`, `fuzzy` or `unknown`."""


class CacheView(TypedDict):
    """One sequence's rows in the cache of a model on a device."""

    label: str
    """The device's label."""
    model: str
    """`target` or `drafter`."""
    sequence: int
    step: list[int]
    """The steps with a forward, in their order on the device; 0 is prefill."""
    t: list[float]
    """When the first forward of each step began."""
    rows: dict[str, list[int]]
    """By state of `STATES`, the rows in each step; states that no step has are left out."""


def caches(trace: Trace) -> list[CacheView]:
    """Return the caches whose rows the trace determines; none for imported runs.

    A model without a forward that found cached rows is left out, as is the drafter of a batch:
    its spans have the rows of all sequences together.
    """
    if origin(trace.header):
        return []
    if len(trace.header.prompts) > 1:
        return _batch(trace)
    fuzzy = {part.span for part in trace.parts}
    slots: dict[tuple[str, str], list[Span]] = {}
    for span in trace.spans:
        if span.kind in _FORWARDS and span.rank == 0:
            slots.setdefault((span.model, span.device), []).append(span)
    labels, clock = {d.name: d.label for d in trace.header.devices}, decoding_clock(trace)
    found: list[CacheView] = []
    for (model, device), spans in sorted(slots.items(), key=lambda slot: slot[0][0] != "target"):
        if any(span.context for span in spans):
            spans.sort(key=lambda s: (s.start, s.id))
            rows = list(_steps(spans, fuzzy))
            times = [clock(group[0].start) for group in _groups(spans)]
            found.append(_view(labels[device], model, 0, times, rows))
    return found


def _groups(spans: Iterable[Span]) -> list[list[Span]]:
    return [list(group) for _, group in groupby(spans, key=lambda span: span.step)]


def _steps(spans: list[Span], fuzzy: set[int]) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield (step, rows by state) of one cache; `fuzzy` are the ids of fuzzy forwards."""
    groups, stack = _groups(spans), list[_Segment]()
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        _cut(stack, group[0].context)
        _fill(stack, group[0].context)
        base, written, lost = list(stack), list[_Segment](), list[_Segment]()
        for span in group:
            dropped = _cut(written, max(0, span.context - _rows(base)))
            dropped += _cut(base, span.context)
            lost += dropped
            _fill(written, span.context - _rows(base))
            written.append((_provenance(span, fuzzy), span.rows))
        stack = base + written
        counts = dict.fromkeys(STATES, 0)
        if following:
            later = following[0].context
            lost += _cut(written, max(0, later - _rows(base))) + _cut(base, later)
        for kind, rows in base:
            counts[kind if kind in ("fuzzy", "unknown") else "valid"] += rows
        for kind, rows in written:
            counts[kind if following else "unknown"] += rows
        for kind, rows in lost:
            counts["lost-fuzzy" if kind == "fuzzy" else "lost"] += rows
        yield group[0].step, counts


def _provenance(span: Span, fuzzy: set[int]) -> str:
    if span.outcome == "cancelled":
        return "unknown"
    return "fuzzy" if span.id in fuzzy else "calibrated" if span.kind == "calibrate" else "new"


def _rows(segments: Iterable[_Segment]) -> int:
    return sum(rows for _, rows in segments)


def _cut(segments: list[_Segment], length: int) -> list[_Segment]:
    """Drop the rows from `length` on; return the dropped segments."""
    dropped, excess = list[_Segment](), _rows(segments) - length
    while excess > 0:
        kind, rows = segments.pop()
        taken = min(rows, excess)
        dropped.append((kind, taken))
        if rows > taken:
            segments.append((kind, rows - taken))
        excess -= taken
    return dropped


def _fill(segments: list[_Segment], length: int) -> None:
    """Add rows of unknown origin up to `length`."""
    if (missing := length - _rows(segments)) > 0:
        segments.append(("unknown", missing))


def _batch(trace: Trace) -> list[CacheView]:
    """Return the target's cache for each sequence of a batch, from the shares of its forwards."""
    shared = packings(trace)
    device = {span.id: span.device for span in trace.spans}
    labels = {d.name: d.label for d in trace.header.devices}
    found: list[CacheView] = []
    for sequence in range(len(trace.header.prompts)):
        own = [p for p in shared if any(share["sequence"] == sequence for share in p["shares"])]
        if own:
            rows = list(_shares(own, sequence))
            label = labels[device[own[0]["span"]]]
            found.append(_view(label, "target", sequence, [p["t"] for p in own], rows))
    return found


def _shares(own: list[PackingView], sequence: int) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield (step, rows by state) of one sequence of a batch."""
    shares = [next(s for s in p["shares"] if s["sequence"] == sequence) for p in own]
    for packing, share, later in zip(own, shares, [*shares[1:], None], strict=True):
        counts = dict.fromkeys(STATES, 0)
        kept = min(share["rows"], later["cached"] - share["cached"]) if later else 0
        counts["valid"], counts["new"] = share["cached"], kept
        counts["lost" if later else "unknown"] = share["rows"] - kept
        counts["padded"] = share["padded_rows"] - share["rows"] + share["padded_cached"] - share["cached"]
        yield packing["step"], counts


def _view(
    label: str, model: str, sequence: int, times: list[float], rows: list[tuple[int, dict[str, int]]]
) -> CacheView:
    columns = {state: [counts[state] for _, counts in rows] for state in STATES}
    return {
        "label": label,
        "model": model,
        "sequence": sequence,
        "step": [step for step, _ in rows],
        "t": times,
        "rows": {state: column for state, column in columns.items() if any(column)},
    }
