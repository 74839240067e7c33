"""Drafts that are trees: their nodes, level by level, with what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traces.branches import OWN, is_tree, judged_drafts
from traces.tokens import decoding_clock, short

if TYPE_CHECKING:
    from engine.trace.events import Decision
    from engine.trace.trace import Trace


def trees(trace: Trace) -> list[dict[str, Any]]:
    """Return a row per round whose draft is a tree; rounds that are not complete yet have none.

    `nodes` are columns, in the draft's order: `parent` (an index into them, -1 for the prefix's last token), `level` from
    0, `id`, `text`, `outcome`, `q` and `p`. The target's own token, where the round emitted one, is the last of them.
    """
    clock = decoding_clock(trace)
    own = {(d.sequence, d.step): d for d in trace.decisions if d.node == OWN and d.rule}
    drafts, rows = judged_drafts(trace.decisions), list[dict[str, Any]]()
    for r in trace.rounds:
        nodes = drafts.get((r.sequence, r.step), {})
        if is_tree(nodes):
            shown = [nodes[n] for n in sorted(nodes)]
            ends = own.get((r.sequence, r.step))
            shown += [ends] if ends and r.emitted > r.accepted else []
            counts = {"drafted": r.drafted, "accepted": r.accepted, "t": clock(r.time)}
            rows.append({"sequence": r.sequence, "step": r.step} | counts | {"nodes": _columns(trace, shown)})
    return rows


def _columns(trace: Trace, shown: list[Decision]) -> dict[str, list[Any]]:
    first, index = min(d.position for d in shown), {d.node: i for i, d in enumerate(shown) if d.node != OWN}
    return {
        "parent": [index.get(d.parent, -1) for d in shown],
        "level": [d.position - first for d in shown],
        "id": [d.token for d in shown],
        "text": [trace.pieces.get(d.token, "") for d in shown],
        "outcome": [d.outcome for d in shown],
        "q": [short(d.q) for d in shown],
        "p": [short(d.p) for d in shown],
    }
