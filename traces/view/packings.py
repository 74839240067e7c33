"""Batches: the rows and cached rows that a forward had for each sequence, padding included.

Source: EMS-SD, section 3.1 and appendix B. The sequences of a batch have different numbers of new
    rows (the last token and the drafts) and of cached rows. The vanilla method pads both to the
    longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from traces.around import WHOLE, Around
from traces.padding import finished, rounds_by_step, steps_of
from traces.view.clock import decoding_clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engine.trace.events import Span
    from engine.trace.trace import Trace


class ShareView(TypedDict):
    """One sequence's share of a forward."""

    sequence: int
    rows: int
    """New rows: its last token and its drafts; none for a sequence that ended and is still fed."""
    cached: int
    """Its cached rows."""
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


def packings(trace: Trace, around: Around = WHOLE) -> list[PackingView]:
    """Return the forwards that verified several sequences at once.

    Args:
        trace: The run, or a part of it.
        around: What the run has around the part.
    """
    clock, times = decoding_clock(trace), {r.step: r.time for r in trace.rounds}
    return [
        {"step": step, "span": span, "t": clock(times[step]), "shares": shares}
        for step, span, shares in _forwards(trace, around)
    ]


def _forwards(trace: Trace, around: Around) -> Iterator[tuple[int, int, list[ShareView]]]:
    """Yield (step, span, shares) of the steps whose sequences share one forward."""
    spans = {s.id: s for s in trace.spans}
    prompts = {s.id for s in trace.spans if s.kind == "prefill"}
    fed = trace.header.config.get("feed_finished")
    ended = finished(trace, around.steps or steps_of(trace)) if fed else {}
    lengths = [len(ids) + around.emitted.get(i, 0) for i, ids in enumerate(trace.header.prompt_ids)]
    for step, every in sorted(rounds_by_step(trace).items()):
        rounds = [r for r in every if r.span not in prompts]  # without the first tokens under load
        span = spans.get(rounds[0].span) if rounds else None
        sequences = [r.sequence for r in rounds] + ended.get(step, [])
        if len(sequences) > 1 and span is not None and {r.span for r in rounds} == {span.id}:
            rows = [r.drafted + 1 for r in rounds] + [1] * (len(sequences) - len(rounds))
            cached = [lengths[sequence] - 1 for sequence in sequences]
            yield step, span.id, _shares(span, sequences, rows, cached, len(rounds))
        for r in every:
            lengths[r.sequence] += r.emitted


def _shares(
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
