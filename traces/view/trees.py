"""Tree drafts: their nodes with the outcome of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from traces.view.branches import NO_NODE, is_tree, judged_drafts
from traces.view.clock import decoding_clock
from traces.view.tokens import short

if TYPE_CHECKING:
    from engine.trace.events import Decision
    from engine.trace.trace import Trace


class NodeColumns(TypedDict):
    """The nodes of a tree in the draft's order; a token of the target's own is the last of them."""

    parent: list[int]
    """Index in these columns; -1 for the last token of the prefix."""
    level: list[int]
    """Depth from 0."""
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
    """Return the complete rounds whose draft is a tree."""
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
            rows.append(
                {
                    "sequence": r.sequence,
                    "step": r.step,
                    "drafted": r.drafted,
                    "accepted": r.accepted,
                    "t": clock(r.time),
                    "nodes": _columns(trace, decisions),
                }
            )
    return rows


def _columns(trace: Trace, decisions: list[Decision]) -> NodeColumns:
    root = min(d.position for d in decisions)
    index = {d.node: i for i, d in enumerate(decisions) if d.node != NO_NODE}
    return {
        "parent": [index.get(d.parent, -1) for d in decisions],
        "level": [d.position - root for d in decisions],
        "id": [d.token for d in decisions],
        "text": [trace.pieces.get(d.token, "") for d in decisions],
        "outcome": [d.outcome for d in decisions],
        "q": [short(d.q) for d in decisions],
        "p": [short(d.p) for d in decisions],
    }
