"""Ghosts: the drafted tokens that were rejected or discarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traces.imported import NO_TOKEN, UNKNOWN_TEXT
from traces.view.branches import NO_NODE, by_branch
from traces.view.clock import decoding_clock
from traces.view.tokens import DecisionView, decided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.trace.events import Decision
    from engine.trace.trace import Trace


class GhostView(DecisionView):
    """A drafted token that did not become part of the output."""

    sequence: int
    position: int
    """Position in the sequence that it was drafted for."""
    before: int
    """Position where its branch left the text; it is shown in front of that output token."""
    id: int | None
    """None if redacted or unknown."""
    text: str
    outcome: str
    """`rejected` or `discarded`."""
    step: int
    t: float
    """When its round ended; without a round, when its draft span ended."""
    branch: bool
    """Whether it is the first token of a branch that follows another branch at the same place."""


def ghosts(trace: Trace) -> Iterator[GhostView]:
    """Yield the rejected and discarded drafts, branch after branch.

    A draft that was never judged (node -1) left the text at the step's first rejection. Of a run in
    progress, drafts of incomplete rounds are left out.
    """
    clock = decoding_clock(trace)
    times = {(r.sequence, r.step): r.time for r in trace.rounds}
    ends = {s.id: s.end for s in trace.spans}
    nodes = {(d.sequence, d.step, d.node): d for d in trace.decisions if d.node != NO_NODE}
    forks = _forks(trace)
    last = dict[tuple[int, int, int], int]()
    for d in by_branch(trace.decisions):
        incomplete = trace.footer is None and (d.sequence, d.step) not in times
        if d.outcome not in ("rejected", "discarded") or incomplete:
            continue
        fork = forks.get((d.sequence, d.step), d.position)
        before = min(fork, d.position) if d.node == NO_NODE else _branch_start(d, nodes)
        place = (d.sequence, d.step, before)
        branch = d.node != NO_NODE and last.get(place, d.parent) != d.parent
        last[place] = d.node
        yield {
            "sequence": d.sequence,
            "position": d.position,
            "before": before,
            "id": None if d.token == NO_TOKEN else d.token,
            "text": UNKNOWN_TEXT if d.token == NO_TOKEN else trace.pieces.get(d.token, ""),
            "outcome": d.outcome,
            "step": d.step,
            "t": clock(times.get((d.sequence, d.step), ends.get(d.draft_span, 0))),
            "branch": branch,
            **decided(trace, d),
        }


def _forks(trace: Trace) -> dict[tuple[int, int], int]:
    """Return the position of the first rejection of each (sequence, step)."""
    forks: dict[tuple[int, int], int] = {}
    for d in trace.decisions:
        if d.outcome == "rejected":
            forks.setdefault((d.sequence, d.step), d.position)
    return forks


def _branch_start(decision: Decision, nodes: dict[tuple[int, int, int], Decision]) -> int:
    """Return the position of the first token on the decision's branch that was not accepted."""
    while parent := nodes.get((decision.sequence, decision.step, decision.parent)):
        if parent.outcome == "accepted" or parent.position >= decision.position:
            break
        decision = parent
    return decision.position
