"""The rounds of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from traces.view.clock import decoding_clock

if TYPE_CHECKING:
    from engine.trace.trace import Trace


class RoundView(TypedDict):
    """The fields of `events.Round`, with `t` for its time."""

    step: int
    sequence: int
    mode: str
    drafted: int
    accepted: int
    emitted: int
    span: int
    t: float


def rounds(trace: Trace) -> list[RoundView]:
    """Return the rounds in the order recorded."""
    clock = decoding_clock(trace)
    return [
        {
            "step": r.step,
            "sequence": r.sequence,
            "mode": r.mode,
            "drafted": r.drafted,
            "accepted": r.accepted,
            "emitted": r.emitted,
            "span": r.span,
            "t": clock(r.time),
        }
        for r in trace.rounds
    ]
