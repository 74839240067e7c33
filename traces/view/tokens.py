"""Tokens: those of the output and why each was kept, lost drafts (ghosts), and trees of drafts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.calibration import chance_of
from specscope.traces.facts.imported import NO_TOKEN, shown_piece, shown_text
from specscope.traces.facts.places import NO_NODE
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from specscope.engine.trace.events import Commit, Decision, Top
    from specscope.engine.trace.trace import Trace

TOP = 5
"""Most probable tokens shown of a distribution."""
Nodes = dict[int, "Decision"]
"""The judged nodes of one round's draft, by index."""


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


class NumberedView(CommitView):
    """A committed token of a part."""

    index: int


class TokenView(DecisionView, NumberedView):
    """A committed token with its decision."""

    gap: float
    """Time since the sequence's commit before it; tokens committed together have the same gap."""


def committed(trace: Trace) -> Iterator[TokenView]:
    clock = decoding_clock(trace)
    lost = ("rejected", "discarded")
    decisions = {(d.sequence, d.position): d for d in trace.decisions if d.outcome not in lost}
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


def judged_drafts(decisions: Iterable[Decision]) -> dict[tuple[int, int], Nodes]:
    drafts: dict[tuple[int, int], Nodes] = {}
    for d in decisions:
        if d.node != NO_NODE:
            drafts.setdefault((d.sequence, d.step), {})[d.node] = d
    return drafts


def is_tree(nodes: Nodes) -> bool:
    return any(d.parent != d.node - 1 for d in nodes.values())


def by_branch(decisions: Iterable[Decision]) -> list[Decision]:
    """Return decisions with each draft's nodes depth first: branch after branch.

    Chains, and decisions about tokens outside a judged draft, keep their order.
    """
    rows = list(decisions)
    ranks = {draft: _ranks(nodes) for draft, nodes in judged_drafts(rows).items()}
    first = dict[tuple[int, int], int]()

    def key(item: tuple[int, Decision]) -> tuple[int, int, int]:
        index, d = item
        if d.node == NO_NODE:
            return index, 0, index
        draft = d.sequence, d.step
        return first.setdefault(draft, index), ranks[draft][d.node], index

    return [d for _, d in sorted(enumerate(rows), key=key)]


def _ranks(nodes: Nodes) -> dict[int, int]:
    """Return the place of each node, depth first."""
    children: dict[int, list[int]] = {}
    for node in sorted(nodes, reverse=True):
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
    clock = decoding_clock(trace)
    times = {(r.sequence, r.step): r.time for r in trace.rounds}
    ends = {s.id: s.end for s in trace.spans}
    nodes = {(d.sequence, d.step, d.node): d for d in trace.decisions if d.node != NO_NODE}
    forks, starts = _forks(trace), _branch_starts(nodes)
    last = dict[tuple[int, int, int], int]()
    for d in by_branch(trace.decisions):
        incomplete = trace.footer is None and (d.sequence, d.step) not in times
        if d.outcome not in ("rejected", "discarded") or incomplete:
            continue
        fork = forks.get((d.sequence, d.step), d.position)
        before = min(fork, d.position) if d.node == NO_NODE else starts[d.sequence, d.step, d.node]
        place = (d.sequence, d.step, before)
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
            "t": clock(times.get((d.sequence, d.step), ends.get(d.draft_span, 0))),
            "branch": branch,
            **decided(trace, d),
        }


def _forks(trace: Trace) -> dict[tuple[int, int], int]:
    """Return where a round's drafts left the text: at its first rejection, or at lost siblings."""
    rejected, lost = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    for d in trace.decisions:
        if d.node != NO_NODE and d.outcome in ("rejected", "discarded"):
            (rejected if d.outcome == "rejected" else lost).setdefault((d.sequence, d.step), d.position)
    return lost | rejected


def _branch_starts(nodes: Mapping[tuple[int, int, int], Decision]) -> dict[tuple[int, int, int], int]:
    """Return the position of the first token on each node's branch that was not accepted."""
    starts: dict[tuple[int, int, int], int] = {}
    for (sequence, step, node), d in sorted(nodes.items(), key=lambda item: item[1].position):
        parent = nodes.get((sequence, step, d.parent))
        own = parent is None or parent.outcome == "accepted" or parent.position >= d.position
        starts[sequence, step, node] = d.position if own else starts[sequence, step, d.parent]
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
    own_tokens = {(d.sequence, d.step): d for d in trace.decisions if d.node == NO_NODE and d.rule}
    drafts, rows = judged_drafts(trace.decisions), list[TreeView]()
    for r in trace.rounds:
        nodes = drafts.get((r.sequence, r.step), {})
        if is_tree(nodes):
            decisions = [nodes[n] for n in sorted(nodes)]
            own = own_tokens.get((r.sequence, r.step))
            if own and r.emitted > r.accepted:
                decisions.append(own)
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
