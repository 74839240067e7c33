"""Forks: the branches below a draft's last level, which were drafted while the target verified it.

A trace has no parents of tokens that were never judged. Their forwards, and their order in a
forward, name the branch of each, as long as all branches have a token.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.places import NO_NODE
from specscope.traces.view import section
from specscope.traces.view.tokens import NodeColumns, TreeView, judged_drafts, short
from specscope.traces.view.tokens import trees as judged_trees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    return with_forks(trace, judged_trees(trace))


def with_forks(trace: Trace, trees: Sequence[TreeView]) -> list[TreeView]:
    """Return the trees, with the branches of those that end in a fork."""
    steps = {s.id: s.step for s in trace.spans}
    modes = {(r.sequence, r.step): r.mode for r in trace.rounds}
    drafts, lost = judged_drafts(trace.decisions), defaultdict[tuple[int, int], list["Decision"]](list)
    for d in trace.decisions:
        if d.node == NO_NODE and d.outcome == "discarded" and steps.get(d.draft_span) == d.step:
            lost[d.sequence, d.step].append(d)
    following = _following(trace)
    shown = list[TreeView]()
    for tree in trees:
        key = (tree["sequence"], tree["step"])
        judged = [drafts[key][n] for n in sorted(drafts[key])]
        later = drafts.get(following.get(key, (-1, -1)), {})
        pending = [later[n] for n in sorted(later) if steps.get(later[n].draft_span) == key[1]]
        is_fork = modes.get(key) in OVERLAPPING and _forks(judged)
        fork = _fork(trace, tree, judged, pending, lost[key]) if is_fork else None
        shown.append(ForkedView(**tree, fork=fork) if fork else tree)
    return shown


def _following(trace: Trace) -> dict[tuple[int, int], tuple[int, int]]:
    """Map each round, (sequence, step), to the next one of its sequence."""
    following, last = dict[tuple[int, int], tuple[int, int]](), dict[int, tuple[int, int]]()
    for r in trace.rounds:
        key = (r.sequence, r.step)
        if r.sequence in last:
            following[last[r.sequence]] = key
        last[r.sequence] = key
    return following


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
