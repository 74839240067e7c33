"""The rows of each KV cache by step: kept, rolled back, fuzzy, calibrated, padded.

A forward's span has the rows that it fed and the rows that it found cached. Fewer found rows than
the forward before it left are a rollback; more are rows that no span of the device wrote, whose
origin is unknown. The last forward's rows have no successor that shows their fate. Rows are counted
in the order written: of a tree, the count of kept nodes is exact, not their places.

Of a batch, the rows and cached rows that a forward had for each sequence, padding included (EMS-SD,
section 3.1 and appendix B): the sequences have different numbers of new rows (the last token and
the drafts) and of cached rows. The vanilla method pads both to the longest.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, TypedDict

from specscope.engine.trace.events import FORWARDS
from specscope.traces.facts.imported import CACHED, origin
from specscope.traces.facts.joined import spans_by_id
from specscope.traces.facts.padding import finished, rounds_by_step, steps_of
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specscope.engine.trace.events import Span
    from specscope.engine.trace.trace import Trace

STATES: tuple[str, ...] = (
    "valid",
    "new",
    "calibrated",
    "fuzzy",
    "lost",
    "lost-fuzzy",
    "padded",
    "unknown",
)
"""The states of rows, in the order shown.

`valid`: cached before the step; `new`: written in it; `calibrated`: written by an exact forward
before a fuzzy draft; `fuzzy`: written by a fuzzy forward; `lost`, `lost-fuzzy`: rolled back after
the step or in it; `padded`: rows that the vanilla method adds to a batch; `unknown`: rows whose
origin or fate the trace does not have."""


class KvCacheView(TypedDict):
    """One sequence's rows in the cache of a model on a device."""

    label: str
    model: str
    sequence: int
    step: list[int]
    """The steps with a forward, in their order on the device; 0 is prefill."""
    t: list[float]
    rows: dict[str, list[int]]
    """By state of `STATES`, the rows in each step; states that no step has are left out."""


@section("caches", "KV caches", need="spans")
def caches(trace: Trace) -> list[KvCacheView]:
    """Return the caches whose rows the trace determines; none without the rows of each forward.

    A model without a forward that found cached rows is left out, as is the drafter of a batch:
    its spans have the rows of all sequences together.
    """
    engine = origin(trace.header)
    if engine is not None and (not engine.recorded or CACHED in engine.unknown):
        return []
    if len(trace.header.prompts) > 1:
        return _batch(trace)
    fuzzy = {part.span for part in trace.parts}
    slots: dict[tuple[str, str], list[Span]] = {}
    for span in trace.spans:
        if span.kind in (*FORWARDS, "prefill", "communicate") and span.rank == 0:
            slots.setdefault((span.model, span.device), []).append(span)
    labels, clock = {d.name: d.label for d in trace.header.devices}, decoding_clock(trace)
    found: list[KvCacheView] = []
    for (model, device), spans in sorted(slots.items(), key=lambda slot: slot[0][0] != "target"):
        if any(span.context for span in spans):
            spans.sort(key=lambda s: (s.start, s.id))
            groups = _groups(_writing(spans))
            times = [clock(group[0].start) for group in groups]
            found.append(_view(labels[device], model, 0, times, list(_steps(groups, fuzzy))))
    return found


def _writing(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans that write rows: forwards, and copies of rows that end after the cached ones.

    The other copies are those of rows that another device gets, and exchanges between ranks.
    """
    length = 0
    for span in spans:
        end = span.context + span.rows
        if span.kind != "communicate" or end > length:
            length = end
            yield span


def _groups(spans: Iterable[Span]) -> list[list[Span]]:
    return [list(group) for _, group in groupby(spans, key=lambda span: span.step)]


def _steps(groups: list[list[Span]], fuzzy: set[int]) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield (step, rows by state) of one cache.

    `groups` are its forwards by step, `fuzzy` the ids of fuzzy ones.
    """
    base = _Rows()
    if groups:
        base.add("unknown", groups[0][0].context)
    for group, following in zip_longest(groups, groups[1:]):
        base.cut(group[0].context)
        base.fill(group[0].context)
        written, lost = _Rows(), Counter[str]()
        for span in group:
            lost += written.cut(max(0, span.context - base.length)) + base.cut(span.context)
            written.fill(span.context - base.length)
            written.add(_provenance(span, fuzzy), span.rows)
        if following:
            later = following[0].context
            lost += written.cut(max(0, later - base.length)) + base.cut(later)
        counts = dict.fromkeys(STATES, 0) | base.counts
        for kind, rows in written.counts.items():
            counts[kind if following else "unknown"] += rows
        for kind, rows in lost.items():
            counts["lost-fuzzy" if kind == "fuzzy" else "lost"] += rows
        yield group[0].step, counts
        for kind, rows in written.segments:
            base.add(kind if kind in ("fuzzy", "unknown") else "valid", rows)


def _provenance(span: Span, fuzzy: set[int]) -> str:
    if span.outcome == "cancelled":
        return "unknown"
    return "fuzzy" if span.id in fuzzy else "calibrated" if span.kind == "calibrate" else "new"


class _Rows:
    """Cached rows in the order written, by provenance.

    A provenance is `new`, `calibrated`, `fuzzy` or `unknown`; before the step, `valid` in place of
    the first two.
    """

    def __init__(self) -> None:
        self.segments: list[tuple[str, int]] = []
        self.counts: Counter[str] = Counter()
        self.length = 0

    def add(self, kind: str, rows: int) -> None:
        """Append rows; a file may claim fewer than none."""
        rows = max(0, rows)
        self.segments.append((kind, rows))
        self.counts[kind] += rows
        self.length += rows

    def cut(self, length: int) -> Counter[str]:
        """Drop the rows from `length` on; return how many, by provenance."""
        dropped: Counter[str] = Counter()
        length = max(0, length)
        while self.length > length:
            kind, rows = self.segments.pop()
            taken = min(rows, self.length - length)
            if rows > taken:
                self.segments.append((kind, rows - taken))
            dropped[kind] += taken
            self.length -= taken
        self.counts -= dropped
        return dropped

    def fill(self, length: int) -> None:
        if length > self.length:
            self.add("unknown", length - self.length)


def _batch(trace: Trace) -> list[KvCacheView]:
    shared = packings(trace)
    labels = {d.name: d.label for d in trace.header.devices}
    by_sequence: dict[int, list[tuple[PackingView, ShareView]]] = {}
    for packing in shared:
        for share in packing["shares"]:
            by_sequence.setdefault(share["sequence"], []).append((packing, share))
    found: list[KvCacheView] = []
    for sequence, own in sorted(by_sequence.items()):
        label = labels[spans_by_id(trace)[own[0][0]["span"]].device]
        found.append(_view(label, "target", sequence, [p["t"] for p, _ in own], list(_shares(own))))
    return found


def _shares(own: list[tuple[PackingView, ShareView]]) -> Iterator[tuple[int, dict[str, int]]]:
    for (packing, share), following in zip_longest(own, own[1:]):
        counts = dict.fromkeys(STATES, 0)
        later = following[1] if following else None
        kept = min(share["rows"], later["cached"] - share["cached"]) if later else 0
        counts["valid"], counts["new"] = share["cached"], kept
        counts["lost" if later else "unknown"] = share["rows"] - kept
        counts["padded"] = share["padded_rows"] - share["rows"] + share["padded_cached"] - share["cached"]
        yield packing["step"], counts


def _view(
    label: str, model: str, sequence: int, times: list[float], rows: list[tuple[int, dict[str, int]]]
) -> KvCacheView:
    columns = {state: [counts[state] for _, counts in rows] for state in STATES}
    return {
        "label": label,
        "model": model,
        "sequence": sequence,
        "step": [step for step, _ in rows],
        "t": times,
        "rows": {state: column for state, column in columns.items() if any(column)},
    }


class ShareView(TypedDict):
    """One sequence's share of a forward."""

    sequence: int
    rows: int
    """New rows: its last token and its drafts; none for a sequence that ended and is still fed."""
    cached: int
    padded_rows: int
    """Rows fed for it, padding included."""
    padded_cached: int
    """Cached rows in its attention, padding included."""


class PackingView(TypedDict):
    """A forward that verified several sequences."""

    step: int
    span: int
    t: float
    shares: list[ShareView]


@section("packings", "batches", need="spans")
def packings(trace: Trace) -> list[PackingView]:
    """Return the batches whose padding the trace determines; none of another engine or program."""
    if origin(trace.header) is not None:
        return []
    clock, times = decoding_clock(trace), {r.step: r.time for r in trace.rounds}
    return [
        {"step": step, "span": span, "t": clock(times[step]), "shares": shares}
        for step, span, shares in _forwards(trace)
    ]


def _forwards(trace: Trace) -> Iterator[tuple[int, int, list[ShareView]]]:
    spans = spans_by_id(trace)
    prompts = {s.id for s in trace.spans if s.kind == "prefill"}
    fed = trace.header.config.get("feed_finished")
    ended = finished(trace, steps_of(trace)) if fed else {}
    lengths = [len(ids) for ids in trace.header.prompt_ids]
    for step, every in sorted(rounds_by_step(trace).items()):
        rounds = [r for r in every if r.span not in prompts]  # without the first tokens under load
        span = spans.get(rounds[0].span) if rounds else None
        sequences = [r.sequence for r in rounds] + ended.get(step, [])
        if len(sequences) > 1 and span is not None and {r.span for r in rounds} == {span.id}:
            rows = [r.drafted + 1 for r in rounds] + [1] * (len(sequences) - len(rounds))
            cached = [lengths[sequence] - 1 for sequence in sequences]
            yield step, span.id, _split_shares(span, sequences, rows, cached, len(rounds))
        for r in every:
            lengths[r.sequence] += r.emitted


def _split_shares(
    span: Span, sequences: Sequence[int], rows: Sequence[int], cached: Sequence[int], active: int
) -> list[ShareView]:
    """Return the shares of a forward: of its `active` sequences first, then of those that ended."""
    padded_rows, padded_cached = _split(span.rows, rows), _split(span.context, cached)
    return [
        {
            "sequence": sequence,
            "rows": rows[i] if i < active else 0,
            "cached": cached[i],
            "padded_rows": padded_rows[i],
            "padded_cached": padded_cached[i],
        }
        for i, sequence in enumerate(sequences)
    ]


def _split(total: int, counts: Sequence[int]) -> Sequence[int]:
    """Split the total: each sequence's own count if unpadded, else equal shares."""
    return counts if sum(counts) == total else [total // len(counts)] * len(counts)
