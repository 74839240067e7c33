"""Judged drafts as trees: the nodes of each draft, and the order that keeps a branch together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.trace.events import Decision

NO_NODE = -1
"""`node` of a decision about the target's own token, or about a draft that was never judged."""
Nodes = dict[int, "Decision"]
"""The judged nodes of one round's draft, by index."""


def judged_drafts(decisions: Iterable[Decision]) -> dict[tuple[int, int], Nodes]:
    """Return the nodes of every judged draft by (sequence, step)."""
    drafts: dict[tuple[int, int], Nodes] = {}
    for d in decisions:
        if d.node != NO_NODE:
            drafts.setdefault((d.sequence, d.step), {})[d.node] = d
    return drafts


def is_tree(nodes: Nodes) -> bool:
    """Return whether the draft is not a chain: a node's parent is not the node before it."""
    return any(d.parent != d.node - 1 for d in nodes.values())


def has_trees(decisions: Iterable[Decision]) -> bool:
    """Return whether any judged draft is a tree."""
    return any(d.node != NO_NODE and d.parent != d.node - 1 for d in decisions)


def by_branch(decisions: Iterable[Decision]) -> list[Decision]:
    """Return decisions with each draft's nodes depth first: branch after branch.

    Chains, and decisions about tokens outside a judged draft, keep their order.
    """
    rows = list(decisions)
    drafts, first = judged_drafts(rows), dict[tuple[int, int], int]()

    def key(item: tuple[int, Decision]) -> tuple[int, tuple[int, ...], int]:
        index, d = item
        if d.node == NO_NODE:
            return index, (), index
        return first.setdefault((d.sequence, d.step), index), _path(drafts[d.sequence, d.step], d), index

    return [d for _, d in sorted(enumerate(rows), key=key)]


def _path(nodes: Nodes, d: Decision) -> tuple[int, ...]:
    """Return the nodes from the root of the draft to this one."""
    path = [d.node]
    while d.parent in nodes and d.parent < d.node:
        d = nodes[d.parent]
        path.append(d.node)
    return tuple(path[::-1])
