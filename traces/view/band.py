"""The overlap band under the tracks, and its four shares as the headline of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from traces import waiting
from traces.view.clock import decoding_clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.trace.trace import Trace


class ShareOfTime(TypedDict):
    """A part of the headline."""

    kind: str
    """`both`, `draft`, `target` or `none`: the sides that work."""
    label: str
    percent: int
    """Of decoding, as in the figures."""


def band(trace: Trace, stretches: Sequence[waiting.Band]) -> list[tuple[str, float, float]]:
    """Return (kind, start, end) of the adjacent stretches that fill the time of decoding.

    Args:
        trace: The run.
        stretches: Its `waiting.band`.
    """
    clock = decoding_clock(trace)
    return [(b.kind, clock(b.start), clock(b.end)) for b in stretches]


def headline(trace: Trace, stretches: Sequence[waiting.Band]) -> list[ShareOfTime]:
    """Return the shares of the band; empty if nothing was decoded.

    Without a drafter, the kinds in which a drafter works are left out.

    Args:
        trace: The run.
        stretches: Its `waiting.band`.
    """
    start, end = waiting.decode_window(trace)
    if start == end:
        return []
    drafts, apart = (
        any(s.model == "drafter" and s.kind != "prefill" for s in trace.spans),
        waiting.apart(trace),
    )
    labels = {
        "both": "both busy",
        "draft": "target waits for drafter" if apart else "only the drafter works",
        "target": ("drafter waits for target" if apart else "only the target works")
        if drafts
        else "target busy",
        "none": "neither busy" if drafts else "target idle",
    }
    shares = waiting.overlap(trace, stretches)
    parts: list[ShareOfTime] = [
        {"kind": kind, "label": label, "percent": round(100 * shares[kind])} for kind, label in labels.items()
    ]
    return [part for part in parts if drafts or part["percent"] or part["kind"] in ("target", "none")]
