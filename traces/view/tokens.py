"""Tokens: those of the output and why each was kept, lost drafts (ghosts), and trees of drafts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.calibration import chance_of
from specscope.traces.facts.imported import NO_TOKEN, shown_piece, shown_text
from specscope.traces.facts.joined import LOST, NO_NODE, JoinedRound, decisions_of_output, joined, spans_by_id
from specscope.traces.facts.places import has_trees
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specscope.engine.trace.events import Commit, Decision, Top
    from specscope.engine.trace.trace import Trace

TOP = 5
"""Most probable tokens shown of a distribution."""


class DecisionView(TypedDict, total=False):
    """The decision about a token. Without a recorded decision, none of these fields exists."""

    node: int
    """Index in the judged draft; -1 for the target's own token, and for a draft never judged."""
    p: float | None
    q: float | None
    u: float | None
    chance: float | None
    """The probability that the rule accepts the token; null if nothing is drawn."""
    rule: str
    draft: int
    """Id of a span; -1 for none."""
    verify: int
    top_p: list[tuple[int, float | None]]
    """The most probable tokens: (id, probability)."""
    top_q: list[tuple[int, float | None]]


class CommitView(TypedDict):
    """A committed token."""

    sequence: int
    position: int
    """Position in the sequence; 0 is the prompt's first token."""
    id: int
    text: str
    outcome: str
    step: int
    t: float


class TokenView(DecisionView, CommitView):
    """A committed token with its decision."""

    index: int
    gap: float
    """Time since the sequence's commit before it; tokens committed together have the same gap."""


def committed(trace: Trace) -> Iterator[TokenView]:
    clock = decoding_clock(trace)
    decisions = decisions_of_output(trace)
    last: dict[int, tuple[float, float]] = {}
    for index, commit in enumerate(trace.commits):
        now = clock(commit.time)
        before, latest = last.get(commit.sequence, (0.0, 0.0))
        if now != latest:
            before, latest = latest, now
        last[commit.sequence] = before, latest
        decision = decisions.get((commit.sequence, commit.position))
        row = commit_view(commit, shown_text(trace.header, commit), now)
        token: TokenView = {"index": index, **row, "gap": round(now - before, 3)}
        yield {**token, **decided(trace, decision)} if decision else token


def commit_view(commit: Commit, text: str, t: float) -> CommitView:
    return row_of(CommitView, commit, id=commit.token, text=text, outcome=commit.origin, t=t)


def decided(trace: Trace, d: Decision) -> DecisionView:
    greedy = trace.header.sampling.get("temperature", 0) == 0
    return {
        "node": d.node,
        "p": short(d.p),
        "q": short(d.q),
        "u": short(d.u),
        "chance": short(chance_of(d, greedy=greedy)),
        "rule": d.rule,
        "draft": d.draft_span,
        "verify": d.verify_span,
        "top_p": _top(d.top_p),
        "top_q": _top(d.top_q),
    }


def short(value: float | None) -> float | None:
    """Round a probability to four significant digits; None for null, infinity and not-a-number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _top(top: Top) -> list[tuple[int, float | None]]:
    return [(token, short(p)) for token, p in top[:TOP]]


def by_branch(trace: Trace) -> list[Decision]:
    """Return the decisions with each draft's nodes depth first: branch after branch.

    Chains, and decisions about tokens outside a judged draft, keep their order.
    """
    ranks = {draft: _ranks(one.nodes) for draft, one in joined(trace).items()}
    first = dict[tuple[int, int], int]()

    def key(item: tuple[int, Decision]) -> tuple[int, int, int]:
        index, d = item
        if d.node == NO_NODE:
            return index, 0, index
        draft = d.sequence, d.step
        return first.setdefault(draft, index), ranks[draft][d.node], index

    return [d for _, d in sorted(enumerate(trace.decisions), key=key)]


def _ranks(nodes: dict[int, Decision]) -> dict[int, int]:
    """Return the place of each node, depth first."""
    children: dict[int, list[int]] = {}
    for node in reversed(nodes):
        parent = nodes[node].parent
        children.setdefault(parent if parent in nodes and parent < node else NO_NODE, []).append(node)
    ranks, waiting = dict[int, int](), [*children.get(NO_NODE, ())]
    while waiting:
        node = waiting.pop()
        ranks[node] = len(ranks)
        waiting += children.get(node, ())
    return ranks


class GhostView(DecisionView):
    """A drafted token that did not become part of the output."""

    sequence: int
    position: int
    """Position in the sequence that it was drafted for."""
    before: int
    """Position where its branch left the text; it is shown in front of that output token."""
    id: int | None
    text: str
    outcome: str
    step: int
    t: float
    """When its round ended; without a round, when its draft span ended."""
    branch: bool
    """Whether it is the first token of a branch that follows another branch at the same place."""


def ghosts(trace: Trace) -> Iterator[GhostView]:
    """Yield the rejected and discarded drafts, branch after branch.

    A draft that was never judged (node -1) left the text at the step's first rejection, or where a
    sibling was accepted in its place. Of a run in progress, drafts of incomplete rounds are left
    out.
    """
    clock, rounds, spans = decoding_clock(trace), joined(trace), spans_by_id(trace)
    starts = {key: _branch_starts(one) for key, one in rounds.items()}
    last = dict[tuple[int, int, int], int]()
    for d in by_branch(trace):
        key, judged = (d.sequence, d.step), rounds.of(d).round
        if d.outcome not in LOST or (trace.footer is None and judged is None):
            continue
        before = starts[key].get(d.node, d.position)
        if d.node == NO_NODE:
            before = min(before, d.position)
        place = (*key, before)
        branch = d.node != NO_NODE and last.get(place, d.parent) != d.parent
        last[place] = d.node
        yield {
            "sequence": d.sequence,
            "position": d.position,
            "before": before,
            "id": None if d.token == NO_TOKEN else d.token,
            "text": shown_piece(trace, d.token),
            "outcome": d.outcome,
            "step": d.step,
            "t": clock(judged.time if judged else spans[d.draft_span].end if d.draft_span in spans else 0),
            "branch": branch,
            **decided(trace, d),
        }


def _branch_starts(one: JoinedRound) -> dict[int, int]:
    """Return the position of the first token on each node's branch that was not accepted.

    That of `NO_NODE` is where the draft left the text: its first rejection, or lost siblings.
    """
    starts, nodes = dict[int, int](), one.nodes
    for node, d in sorted(nodes.items(), key=lambda item: item[1].position):
        parent = nodes.get(d.parent)
        own = parent is None or parent.outcome == "accepted" or parent.position >= d.position
        starts[node] = d.position if own else starts[d.parent]
    lost = [d for d in nodes.values() if d.outcome in LOST]
    if lost:
        starts[NO_NODE] = next((d for d in lost if d.outcome == "rejected"), lost[0]).position
    return starts


class NodeColumns(TypedDict):
    """The nodes of a tree in the draft's order; a token of the target's own is the last of them."""

    parent: list[int]
    """Index in these columns; -1 for the last token of the prefix."""
    level: list[int]
    id: list[int]
    text: list[str]
    outcome: list[str]
    q: list[float | None]
    p: list[float | None]


class TreeView(TypedDict):
    """A judged tree."""

    sequence: int
    step: int
    drafted: int
    accepted: int
    t: float
    nodes: NodeColumns


def trees(trace: Trace) -> list[TreeView]:
    clock = decoding_clock(trace)
    rows = list[TreeView]()
    for r in trace.rounds:
        one = joined(trace).of(r)
        decisions = [*one.nodes.values()]
        if has_trees(decisions):
            if one.own and r.emitted > r.accepted:
                decisions.append(one.own)
            rows.append(row_of(TreeView, r, t=clock(r.time), nodes=_columns(trace, decisions)))
    return rows


def _columns(trace: Trace, decisions: list[Decision]) -> NodeColumns:
    root = min(d.position for d in decisions)
    index = {d.node: i for i, d in enumerate(decisions) if d.node != NO_NODE}
    return {
        "parent": [index.get(d.parent, -1) for d in decisions],
        "level": [d.position - root for d in decisions],
        "id": [d.token for d in decisions],
        "text": [shown_piece(trace, d.token) for d in decisions],
        "outcome": [d.outcome for d in decisions],
        "q": [short(d.q) for d in decisions],
        "p": [short(d.p) for d in decisions],
    }
