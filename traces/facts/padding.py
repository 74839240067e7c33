"""The padding of a batch after each verification, and the lengths that its sequences gain.

Source: EMS-SD, section 3.1 and appendix B. The sequences of a batch gain different numbers of
tokens per verification. The vanilla method pads the KV cache of each sequence to the one that
gained most. A sequence that ends with the round has no later forward, so it is not padded.
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf
from typing import TYPE_CHECKING

from specscope.traces.facts.fates import of_prefill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specscope.engine.trace.events import Round
    from specscope.engine.trace.trace import Trace


def rounds_by_step(trace: Trace) -> dict[int, list[Round]]:
    steps: dict[int, list[Round]] = {}
    for r in sorted(trace.rounds, key=lambda r: r.sequence):
        steps.setdefault(r.step, []).append(r)
    return steps


def shortfalls(trace: Trace) -> dict[int, dict[int, int]]:
    """Return {step: {sequence: most tokens gained - its tokens}} of the sequences that go on."""
    last = {sequence: end for sequence, (_, end) in steps_of(trace).items()}
    found: dict[int, dict[int, int]] = {}
    for step, rounds in rounds_by_step(trace).items():
        most = max(r.emitted for r in rounds)
        found[step] = {r.sequence: most - r.emitted for r in rounds if step < last[r.sequence]}
    return found


def padding_ratios(trace: Trace) -> dict[int, float]:
    """Return each sequence's padding / its tokens; 0 if it was never padded."""
    padding, tokens = dict[int, int](), dict[int, int]()
    for r in trace.rounds:
        tokens[r.sequence] = tokens.get(r.sequence, 0) + r.emitted
    for counts in shortfalls(trace).values():
        for sequence, count in counts.items():
            padding[sequence] = padding.get(sequence, 0) + count
    return {sequence: padding.get(sequence, 0) / n for sequence, n in tokens.items() if n}


def emitted(trace: Trace) -> dict[int, list[int]]:
    """Return the tokens of each round of a sequence, without that of its prefill."""
    counts, before = dict[int, list[int]](), of_prefill(trace)
    for r in trace.rounds:
        if (r.sequence, r.step) not in before:
            counts.setdefault(r.sequence, []).append(r.emitted)
    return counts


def batches(trace: Trace) -> list[list[int]]:
    """Return the sequences of each batch: those whose rounds overlap, directly or through others.

    With dynamic batching all sequences usually are one batch.
    """
    found, end = list[list[int]](), 0
    for sequence, (first, last) in sorted(steps_of(trace).items(), key=lambda s: (s[1][0], s[0])):
        if not found or first > end:
            found.append([])
        found[-1].append(sequence)
        end = max(end, last)
    return found


def finished(trace: Trace, steps: Mapping[int, tuple[int, int]]) -> dict[int, list[int]]:
    """Return by step the sequences that ended before it, without a later one in their place.

    `steps` has the first and the last step of each sequence in the whole run.
    """
    starts = sorted({first for first, _ in steps.values()})
    # each ends before `last`'s next step and is in its place until a later sequence starts
    replaced = {
        s: next(iter(starts[bisect_right(starts, last) :][:1]), inf) for s, (_, last) in steps.items()
    }
    return {
        step: [sequence for sequence, (_, last) in steps.items() if last < step < replaced[sequence]]
        for step in sorted({r.step for r in trace.rounds})
    }


def steps_of(trace: Trace) -> dict[int, tuple[int, int]]:
    steps = dict[int, tuple[int, int]]()
    for r in sorted(trace.rounds, key=lambda r: r.step):
        first, _ = steps.get(r.sequence, (r.step, r.step))
        steps[r.sequence] = first, r.step
    return steps
