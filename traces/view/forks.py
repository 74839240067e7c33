"""Forks: the branches below a draft's last level, which were drafted while the target verified it.

A trace has no parents of tokens that were never judged. Their forwards, and their order in a
forward, name the branch of each, as long as all branches have a token.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.joined import NO_NODE, joined, spans_by_id
from specscope.traces.view import section
from specscope.traces.view.tokens import NodeColumns, TreeView, short
from specscope.traces.view.tokens import trees as judged_trees

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specscope.engine.trace.events import Decision
    from specscope.engine.trace.trace import Trace

OVERLAPPING = ("pre-verify", "post-verify")
"""Modes of rounds that draft while they verify."""


class ForkView(TypedDict):
    """The branch point of a round, and its branches."""

    level: int
    """Level of the siblings."""
    confidence: float | None
    """The drafter's largest probability at the branch point."""
    siblings: int
    winner: int
    """The sibling that was accepted, from 1; 0 for none."""
    lost: int
    """Tokens drafted below siblings that did not win."""
    nodes: NodeColumns
    """The branches without their siblings: `pending` in the next round's draft, or `discarded`.

    Indices of parents go on from the tree's columns. Tokens of an unknown branch are left out."""


class ForkedView(TreeView):
    """A judged tree with its fork."""

    fork: ForkView


@section("trees", "trees")
def trees_and_forks(trace: Trace) -> list[TreeView]:
    """Return the judged trees, with the branches of those that end in a fork."""
    rounds, spans = joined(trace), spans_by_id(trace)

    def drafted_in(step: int, rows: Iterable[Decision]) -> list[Decision]:
        return [d for d in rows if d.draft_span in spans and spans[d.draft_span].step == step]

    shown = list[TreeView]()
    for tree in judged_trees(trace):
        one, step = rounds[tree["sequence"], tree["step"]], tree["step"]
        judged = [*one.nodes.values()]
        pending = drafted_in(step, rounds.of(one.following).nodes.values() if one.following else ())
        never = (d for d in one.decisions if d.node == NO_NODE and d.outcome == "discarded")
        is_fork = one.round and one.round.mode in OVERLAPPING and _forks(judged)
        fork = _fork(trace, tree, judged, pending, drafted_in(step, never)) if is_fork else None
        shown.append(ForkedView(**tree, fork=fork) if fork else tree)
    return shown


def _forks(judged: Sequence[Decision]) -> bool:
    """Return whether a tree is a chain up to its last level."""
    last = max(d.position for d in judged)
    return all(d.parent == d.node - 1 for d in judged if d.position < last)


def _fork(
    trace: Trace,
    tree: TreeView,
    judged: Sequence[Decision],
    pending: Sequence[Decision],
    lost: Sequence[Decision],
) -> ForkView:
    last = max(d.position for d in judged)
    siblings = [i for i, d in enumerate(judged) if d.position == last]
    winner = next((i for i in siblings if judged[i].outcome == "accepted"), None)
    parents, branch = list[int](), list["Decision"]()
    tails, first = {i: i for i in siblings}, len(tree["nodes"]["parent"])

    def add(sibling: int, decision: Decision) -> None:
        parents.append(tails[sibling])
        branch.append(decision)
        tails[sibling] = first + len(branch) - 1

    if winner is not None:
        for decision in pending:
            add(winner, decision)
    losers = [i for i in siblings if i != winner]
    levels = _by_position(lost)
    owners = losers if pending or (levels and len(levels[0]) == len(losers)) else siblings
    for level in levels:
        if len(level) != len(owners):
            break
        for sibling, decision in zip(owners, level, strict=True):
            add(sibling, decision)
    root, waiting = min(d.position for d in judged), len(pending) if winner is not None else 0
    top = judged[siblings[0]].top_q
    return {
        "level": last - root,
        "confidence": short(top[0][1]) if top else None,
        "siblings": len(siblings),
        "winner": 0 if winner is None else siblings.index(winner) + 1,
        "lost": len(lost),
        "nodes": {
            "parent": parents,
            "level": [d.position - root for d in branch],
            "id": [d.token for d in branch],
            "text": [trace.pieces.get(d.token, "") for d in branch],
            "outcome": ["pending" if i < waiting else "discarded" for i in range(len(branch))],
            "q": [short(d.q) for d in branch],
            "p": [None] * len(branch),
        },
    }


def _by_position(decisions: Sequence[Decision]) -> list[list[Decision]]:
    levels: Mapping[int, list[Decision]] = defaultdict(list)
    for d in decisions:
        levels[d.position].append(d)
    return [levels[position] for position in sorted(levels)]
