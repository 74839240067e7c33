"""Batches: the rows and cached rows that a forward had for each sequence, padding included.

Source: EMS-SD, section 3.1 and appendix B. The sequences of a batch have different numbers of new
    rows (the last token and the drafts) and of cached rows. The vanilla method pads both to the
    longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from traces.around import WHOLE, Around
from traces.padding import rounds_by_step
from traces.view.clock import decoding_clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engine.trace.events import Round
    from engine.trace.trace import Trace


class ShareView(TypedDict):
    """One sequence's share of a forward."""

    sequence: int
    rows: int
    """New rows: its last token and its drafts."""
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
        {"step": step, "span": rounds[0].span, "t": clock(times[step]), "shares": shares}
        for step, rounds, shares in _forwards(trace, around)
    ]


def _forwards(trace: Trace, around: Around) -> Iterator[tuple[int, list[Round], list[ShareView]]]:
    """Yield (step, rounds, shares) of the steps whose rounds share one forward."""
    spans = {s.id: s for s in trace.spans}
    lengths = [len(ids) + around.emitted.get(i, 0) for i, ids in enumerate(trace.header.prompt_ids)]
    for step, rounds in sorted(rounds_by_step(trace).items()):
        span = spans.get(rounds[0].span)
        if len(rounds) > 1 and span is not None and {r.span for r in rounds} == {span.id}:
            rows = [r.drafted + 1 for r in rounds]
            cached = [lengths[r.sequence] - 1 for r in rounds]
            padded_rows, padded_cached = _split(span.rows, rows), _split(span.context, cached)
            yield (
                step,
                rounds,
                [
                    {
                        "sequence": r.sequence,
                        "rows": rows[i],
                        "cached": cached[i],
                        "padded_rows": padded_rows[i],
                        "padded_cached": padded_cached[i],
                    }
                    for i, r in enumerate(rounds)
                ],
            )
        for r in rounds:
            lengths[r.sequence] += r.emitted


def _split(total: int, counts: Sequence[int]) -> Sequence[int]:
    """Split the total: each sequence's own count if unpadded, else equal shares."""
    return counts if sum(counts) == total else [total // len(counts)] * len(counts)
