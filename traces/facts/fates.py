"""What became of a run's work: decided in prefill, wasted, preempted, or scored at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specscope.engine.trace.events import DRAFTS, SCORES
from specscope.traces.facts.joined import joined
from specscope.traces.facts.waiting import side

if TYPE_CHECKING:
    from specscope.engine.trace.events import Span
    from specscope.engine.trace.trace import Trace

JUDGED = ("", "discarded", "rejected", "accepted")
"""Outcomes of the tokens of one draft; the last one that any of them has counts."""


def of_prefill(trace: Trace, *, before: bool = False) -> set[tuple[int, int]]:
    """Return the (sequence, step) whose tokens a prefill decided, which is no forward of decoding.

    Under load, prompts arrive while others decode; with `before`, only of prefills before decoding.
    """
    prefills = {s.id for s in trace.spans if s.kind == "prefill" and not (before and s.step)}
    rounds = {(r.sequence, r.step) for r in trace.rounds if r.span in prefills}
    return rounds | {(c.sequence, 0) for c in trace.commits if not c.step}


def prefilled(trace: Trace, *, before: bool = False) -> int:
    """Return how many tokens of the output a prefill decided, see `of_prefill`."""
    rounds = of_prefill(trace, before=before)
    return sum((c.sequence, c.step) in rounds for c in trace.commits)


def wasted(trace: Trace) -> list[Span]:
    """Return the cancelled spans, and the draft spans none of whose tokens was accepted.

    A `glue` span counts unless a branch after it was taken. While the run is in progress, a draft
    without a decision does not count yet.
    """
    judged = {d.draft_span for d in trace.decisions}
    useful = {d.draft_span for d in trace.decisions if d.outcome == "accepted"} | useful_glue(trace)

    def lost(span: Span) -> bool:
        if span.outcome == "cancelled":
            return True
        leader = span.id - span.rank  # decisions name the leader's span
        undecided = trace.footer is None and leader not in judged
        return span.kind in DRAFTS and leader not in useful and not undecided

    return [s for s in trace.spans if lost(s)]


def useful_glue(trace: Trace) -> set[int]:
    """Return the ids of the `glue` spans of rounds in which a branch was taken."""
    rounds = joined(trace)
    return {s.id for s in trace.spans if s.kind == "glue" and rounds.of(s).taken}


def preempted(trace: Trace) -> list[Span]:
    """Return the spans that were cancelled because a draft was wrong or the text ended.

    Spans cancelled because the run was stopped or failed are not among them.
    """
    turn = max((c.step for c in trace.commits if c.origin != "accepted"), default=0)
    cancelled = (s for s in trace.spans if s.outcome == "cancelled")
    return [s for s in cancelled if trace.status == "done" or s.step <= turn]


def scoring(trace: Trace) -> list[Span]:
    """Return the target's forwards that score drafts, of several ranks the leader's."""
    return [s for s in trace.spans if side(s) == "target" and s.kind in SCORES and s.rank == 0]


def sp_degree(trace: Trace) -> int:
    spans = [s for s in scoring(trace) if s.end > s.start]
    edges = [(time, n) for s in spans for time, n in ((s.start, 1), (s.end, -1))]
    most = now = 0
    for _, change in sorted(edges):  # at the same time, ends sort before starts
        now += change
        most = max(most, now)
    return most
