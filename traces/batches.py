"""What a run of several sequences pads, or would pad. Pure functions on a `Trace`.

Source: EMS-SD, section 3.1 and appendix B. After a verification the sequences of a batch have got different numbers of
tokens; the vanilla method pads the KV cache of each by what it got less than the one that got most. Before it they have
different numbers of new rows: the last token and the drafts.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from traces.tokens import decoding_clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.trace.events import Round
    from engine.trace.trace import Trace


class Share(NamedTuple):
    """One sequence's share of a forward: rows of its own, and those the forward had for it, padding included."""

    sequence: int
    rows: int
    """New rows: its last token and its drafts."""
    cached: int
    """Rows cached before."""
    padded_rows: int
    """New rows fed for it."""
    padded_cached: int
    """Rows its attention took for cached."""


def missing(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Return by step what each sequence of the round got less than the one that got most, in the order of sequences."""
    emitted = {step: [r.emitted for r in rounds] for step, rounds in _steps(trace).items()}
    return {step: tuple(max(counts) - n for n in counts) for step, counts in emitted.items()}


def acceptance_lengths(trace: Trace) -> dict[int, float]:
    """Return the mean tokens per verification of each sequence."""
    emitted: dict[int, list[int]] = {}
    for r in trace.rounds:
        emitted.setdefault(r.sequence, []).append(r.emitted)
    return {sequence: fmean(counts) for sequence, counts in emitted.items()}


def forwards(trace: Trace) -> dict[int, tuple[Share, ...]]:
    """Return by step what the target's forward had for each sequence, for steps that verified several in one forward.

    How many rows it fed and found cached is what its span recorded; what is more than the sequences' own is padding, the
    same length for all.
    """
    spans = {s.id: s for s in trace.spans}
    lengths = [len(ids) for ids in trace.header.prompt_ids]
    found: dict[int, tuple[Share, ...]] = {}
    for step, rounds in sorted(_steps(trace).items()):
        span = spans.get(rounds[0].span)
        if len(rounds) > 1 and span is not None and {r.span for r in rounds} == {span.id}:
            rows = [r.drafted + 1 for r in rounds]
            cached = [lengths[r.sequence] - 1 for r in rounds]
            sequences = [r.sequence for r in rounds]
            padded = _share(rows, span.rows), _share(cached, span.context)
            found[step] = tuple(map(Share, sequences, rows, cached, *padded))
        for r in rounds:
            lengths[r.sequence] += r.emitted
    return found


def packings(trace: Trace) -> list[dict[str, Any]]:
    """Return what the viewer shows of `forwards`: each round's step, span, time in ms of decoding, and shares."""
    clock, ends = decoding_clock(trace), {r.step: r.time for r in trace.rounds}
    spans = {r.step: r.span for r in trace.rounds}
    return [
        {"step": step, "span": spans[step], "t": clock(ends[step]), "shares": [s._asdict() for s in shares]}
        for step, shares in forwards(trace).items()
    ]


def _steps(trace: Trace) -> dict[int, list[Round]]:
    steps: dict[int, list[Round]] = {}
    for r in sorted(trace.rounds, key=lambda r: r.sequence):
        steps.setdefault(r.step, []).append(r)
    return steps


def _share(own: Sequence[int], total: int) -> Sequence[int]:
    """Return each sequence's share of a total that is the sum of what is their own, or the same for all."""
    return own if sum(own) == total else [total // len(own)] * len(own)
