"""The spans of a run: forwards, busy devices, lanes, wasted work. Pure functions on a `Trace`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.trace.events import Span
    from engine.trace.trace import Trace

Interval: TypeAlias = tuple[int, int]
FORWARDS = frozenset({"draft", "verify", "pre-verify", "calibrate"})
"""Kinds of spans that are forwards while decoding."""
SCORING = frozenset({"verify", "pre-verify"})
"""Kinds of spans whose forward scores drafts."""


def side(span: Span) -> str:
    """Return the side a span works for: `drafter` or `target`."""
    return "drafter" if span.model == "drafter" else "target"


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as intervals apart from each other, ascending."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def busy(trace: Trace, device: str) -> list[Interval]:
    """Return the intervals in which the device works, over the whole run."""
    return merged((s.start, s.end) for s in trace.spans if s.device == device and s.end > s.start)


def lanes(spans: Iterable[Span]) -> list[int]:
    """Return the lane of each span, from 0: the first lane that is free when the span starts.

    Args:
        spans: Spans of one device, by start.
    """
    ends, taken = list[int](), list[int]()
    for span in spans:
        lane = next((i for i, end in enumerate(ends) if end <= span.start), len(ends))
        ends[lane : lane + 1] = [span.end]
        taken.append(lane)
    return taken


def forwards(trace: Trace) -> list[Span]:
    """Return one span per forward while decoding.

    Of a forward that several devices share, it is the leader's span, as long as the time in which
    any of them works.
    """
    shares: dict[int, list[Span]] = {}
    for span in trace.spans:
        if span.kind in FORWARDS:
            shares.setdefault(span.id - span.rank, []).append(span)
    leaders = [s for s in trace.spans if s.kind in FORWARDS and s.rank == 0]
    return [replace(s, end=s.start + _covered(shares[s.id])) if len(shares[s.id]) > 1 else s for s in leaders]


def _covered(spans: Iterable[Span]) -> int:
    """Return the nanoseconds in which at least one of the spans lasts."""
    return sum(end - start for start, end in merged((s.start, s.end) for s in spans))


def wasted(trace: Trace) -> list[Span]:
    """Return the cancelled spans, and the draft spans none of whose tokens was accepted.

    While the run is in progress, a draft without a decision does not count yet.
    """
    judged = {d.draft_span for d in trace.decisions}
    useful = {d.draft_span for d in trace.decisions if d.outcome == "accepted"}

    def lost(span: Span) -> bool:
        if span.outcome == "cancelled":
            return True
        leader = span.id - span.rank  # decisions name the leader's span
        undecided = trace.footer is None and leader not in judged
        return span.kind == "draft" and leader not in useful and not undecided

    return [s for s in trace.spans if lost(s)]


def preempted(trace: Trace) -> list[Span]:
    """Return the spans that were cancelled because a draft was wrong or the text ended.

    Spans cancelled because the run was stopped or failed are not among them.
    """
    turn = max((c.step for c in trace.commits if c.origin != "accepted"), default=0)
    cancelled = (s for s in trace.spans if s.outcome == "cancelled")
    return [s for s in cancelled if trace.status == "done" or s.step <= turn]


def sp_degree(trace: Trace) -> int:
    """Return DSI's speculation parallelism: the most target servers that worked at once."""
    scoring = [s for s in trace.spans if side(s) == "target" and s.kind in SCORING and s.rank == 0]
    edges = [(time, n) for s in scoring if s.end > s.start for time, n in ((s.start, 1), (s.end, -1))]
    most = now = 0
    for _, change in sorted(edges):  # at the same time, ends sort before starts
        now += change
        most = max(most, now)
    return most
