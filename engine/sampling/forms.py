"""Drafts on a device: their sizes, which are known beforehand, and their nodes, which are not.

Row 0 of a verification is that of the prefix's last token, row i + 1 that of node i. A chain is a
tree with one child per node.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class DraftForm(NamedTuple):
    """The sizes of a draft."""

    nodes: int
    """n, at most."""
    depth: int
    """D, levels."""
    most_nodes: int
    """Of one level."""
    most_children: int
    inner: tuple[int, ...]
    """The P rows that may have children, rising; empty if that depends on probabilities."""

    @property
    def is_chain(self) -> bool:
        return self.most_children < 2


@lru_cache
def form_of(
    plans: tuple[tuple[tuple[int, ...], tuple[int, ...] | int, int], ...], kept: int = 0
) -> DraftForm:
    """Return the form of planned levels.

    A level has counts, onward nodes and the most nodes, as in
    `specscope.engine.drafting.tree.LevelPlan`. Of all nodes the `kept` best ones stay, or all (0).
    """
    sizes = [min(sum(counts), most or sum(counts)) for counts, _, most in plans]
    inner, first, fixed = [0] if plans else [], 1, True
    for size, (_, onward, _) in list(zip(sizes, plans, strict=True))[:-1]:
        fixed = fixed and not isinstance(onward, int)
        inner += [first + node for node in onward] if not isinstance(onward, int) else []
        first += size
    children = max((max(counts) for counts, _, _ in plans), default=0)
    nodes = min(sum(sizes), kept or sum(sizes))
    return DraftForm(nodes, len(plans), max(sizes, default=0), children, tuple(inner) if fixed else ())


def best_places(values: Tensor, exists: Tensor, count: int) -> Tensor:
    """Return the places of the largest values that exist, rising; of equal ones the first.

    Values are (..., n), the result (..., count).
    """
    ranked = torch.where(exists, values, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
    return ranked[..., :count].sort(-1).values


class DeviceTree(NamedTuple):
    """The nodes of a draft on the device, parents before children, siblings in order."""

    tokens: Tensor
    """(n,) int64."""
    exists: Tensor
    """Whether a node is there: q may have fewer tokens than places, (n,) bool."""
    parents: Tensor
    """The row of each node's parent, (n,) int64."""
    depths: Tensor
    """Of each row: tokens after the prefix's last one, (n + 1,) int64."""
    siblings: Tensor
    """The number of each node among its siblings, (n,) int64."""

    @classmethod
    def chain(cls, tokens: Tensor) -> DeviceTree:
        """Return a chain of tokens."""
        rows = torch.arange(len(tokens) + 1, device=tokens.device)
        return cls(tokens, torch.ones_like(rows[1:], dtype=torch.bool), rows[:-1], rows, 0 * rows[1:])

    def ancestors(self, depth: int) -> Tensor:
        """Return whether each row is another one, or descends from it, (n + 1, n + 1) bool."""
        rows = torch.arange(len(self.depths), device=self.depths.device)
        own = seen = rows[:, None] == rows
        parents = torch.cat([rows[:1], self.parents])
        for _ in range(depth):
            seen = own | seen.index_select(0, parents)
        return seen

    def best(self, values: Tensor, count: int) -> DeviceTree:
        """Return the nodes with the largest values, (n,), that exist; of equal ones the first."""
        if count >= len(self.tokens):
            return self
        kept = best_places(values, self.exists, count)
        rows = torch.zeros_like(self.depths).index_copy_(
            0, kept + 1, torch.arange(1, count + 1, device=kept.device)
        )
        tokens, exists, parents, siblings = (
            part.index_select(0, kept) for part in (self.tokens, self.exists, self.parents, self.siblings)
        )
        depths = torch.cat([self.depths[:1], self.depths.index_select(0, kept + 1)])
        return DeviceTree(tokens, exists, rows.index_select(0, parents), depths, siblings)
