"""The padding of a batch after each verification. Source: EMS-SD, section 3.1.

The sequences of a batch gain different numbers of tokens per verification. The vanilla method pads
the KV cache of each sequence to the one that gained most.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.trace.events import Round
    from engine.trace.trace import Trace


def rounds_by_step(trace: Trace) -> dict[int, list[Round]]:
    """Return the rounds of each step, by sequence."""
    steps: dict[int, list[Round]] = {}
    for r in sorted(trace.rounds, key=lambda r: r.sequence):
        steps.setdefault(r.step, []).append(r)
    return steps


def shortfalls(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Return {step: most tokens gained - tokens gained, for each sequence}."""
    emitted = {step: [r.emitted for r in rounds] for step, rounds in rounds_by_step(trace).items()}
    return {step: tuple(max(counts) - n for n in counts) for step, counts in emitted.items()}


def acceptance_lengths(trace: Trace) -> dict[int, float]:
    """Return the mean number of tokens per verification, by sequence."""
    emitted: dict[int, list[int]] = {}
    for r in trace.rounds:
        emitted.setdefault(r.sequence, []).append(r.emitted)
    return {sequence: fmean(counts) for sequence, counts in emitted.items()}
