"""The nodes of a level, chosen on the device where their places are known beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from engine.draws import TOP, pick_rows, softmax, warp

if TYPE_CHECKING:
    from engine.drafters.tree import LevelPlan
    from engine.types import Sampling

NUMBER_BITS = 32
"""Of a token's number in the key by which the most probable tokens are found."""


class GrowthKind(NamedTuple):
    """The sizes of a growth, and its way of choosing tokens."""

    slot: int
    """The first slot."""
    slots: int
    """S, the slots from there on."""
    plans: tuple[LevelPlan, ...]
    """The levels."""
    length: int
    """Cached rows that attention reads."""
    columns: int
    """N, the columns of the logits to choose from: the first ones."""
    sampling: Sampling | None
    """The warp of q; None: a node's children are its most probable tokens."""

    @property
    def forwarded(self) -> list[int]:
        """Nodes of each level but the last that get children: K, the rows of a slot's forwards."""
        return [plan.onward_count for plan in self.plans[:-1]]


class ChosenLevel(NamedTuple):
    """One level of B slots. K rows have logits: one per node above that gets children."""

    alive: Tensor
    """Whether the node of a row exists, (B, K) bool: q may have fewer tokens than the plan."""
    top_ids: Tensor
    """The most probable columns of each row, falling, lower ids first among equals, (B, K, m)."""
    top: Tensor
    """Their probabilities, float64."""
    ids: Tensor
    """The drawn columns, (B, K, C) for C children at most; empty without a draw."""
    counts: Tensor
    """The number of drawn children of each row, (B, K)."""
    q: Tensor | None
    """(B, K, N) if the children were drawn."""


class Chosen(NamedTuple):
    """The n nodes of a level, in their places."""

    columns: Tensor
    """(S, n)."""
    paths: Tensor
    """(S, n) float64: the probability of the path to each node that is not drawn."""
    exists: Tensor
    """(S, n) bool."""
    facts: Tensor
    """The numbers that travel to the host, (S, width)."""
    q: Tensor | None


class Choice:
    """How a level's nodes are chosen; see `engine.drafters.level.next_level`.

    Args:
        plan: The level.
        sampling: The warp of q; None: a node's children are its most probable tokens.
        columns: N, the columns of the logits to choose from.
        device: Where the logits are.
    """

    def __init__(
        self, plan: LevelPlan, sampling: Sampling | None, columns: int, device: torch.device
    ) -> None:
        self._plan, self._sampling = plan, sampling
        self._rows, self._children = len(plan.counts), max(plan.counts)
        self._top = min(TOP if sampling else max(TOP, self._children), columns)
        pairs = [(row, child) for row, count in enumerate(plan.counts) for child in range(count)]
        self.parents, self._child = torch.tensor(pairs, device=device).unbind(1)
        """The row above and the number among its siblings of each node, (n,)."""
        self._counts = torch.tensor(plan.counts, device=device)
        self._fixed = (
            None
            if isinstance(plan.onward, int)
            else torch.tensor(plan.onward, dtype=torch.int64, device=device)
        )
        self._drawn = self._children if sampling else 0
        self._widths = [
            self._rows,
            self._rows * self._top,
            self._rows * self._top,
            self._rows * self._drawn,
            self._rows,
        ]
        self.width = sum(self._widths)
        """Numbers per slot that travel to the host."""

    def choose(self, logits: Tensor, paths: Tensor, alive: Tensor, numbers: Tensor) -> Chosen:
        """Choose the children of K nodes, (S, K, N) logits."""
        slots, flat = logits.shape[0], logits.flatten(0, 1)
        sampling = self._sampling
        q = warp(flat, sampling) if sampling else softmax(flat)
        top_ids, top = _most_probable(q, self._top)
        split = (slots, self._rows, -1)
        top_ids, top, q = top_ids.view(split), top.double().view(split), q.view(split)
        if sampling:
            counts = torch.minimum((q > 0).sum(-1), self._counts) * alive
            ids = self._draw(q, counts, numbers)
            exists = self._child < counts[:, self.parents]
            node_paths = paths[:, self.parents] - self._child
            columns = ids[:, self.parents, self._child]
        else:
            counts, ids = self._counts.expand(slots, -1), top_ids[:, :, :0]
            values = top[:, self.parents, self._child]
            exists = (values > 0) & alive[:, self.parents]
            node_paths = paths[:, self.parents] * values.clamp(max=1.0)
            columns = top_ids[:, self.parents, self._child]
        parts = [alive, top_ids.flatten(1), top.flatten(1), ids.flatten(1), counts]
        facts = torch.cat([part.double() for part in parts], 1)
        return Chosen(columns, node_paths, exists, facts, q if sampling else None)

    def _draw(self, q: Tensor, counts: Tensor, numbers: Tensor) -> Tensor:
        """Draw the children of each row without replacement, (S, K, C)."""
        rest, first = q.clone(), counts.cumsum(1) - counts  # a level's draws are numbered in order
        drawn = list[Tensor]()
        for child in range(self._children):
            u = numbers.gather(1, (first + child).clamp(max=numbers.shape[1] - 1))
            ids = pick_rows(u.flatten(), rest.flatten(0, 1)).view(counts.shape)
            rest.scatter_(2, ids[:, :, None], 0)
            drawn.append(ids)
        return torch.stack(drawn, 2)

    def onward(self, paths: Tensor, exists: Tensor) -> Tensor:
        """Return the places of the nodes that get children, rising, (S, K')."""
        if self._fixed is not None:
            return self._fixed.expand(len(paths), -1)
        ranked = torch.where(exists, paths, -1.0).sort(dim=1, descending=True, stable=True).indices
        return ranked[:, : self._plan.onward_count].sort(1).values

    def read(self, facts: Tensor, q: Tensor | None) -> ChosenLevel:
        """Return the level that the facts of B slots describe."""
        alive, top_ids, top, ids, counts = facts.split(self._widths, 1)
        split = (len(facts), self._rows, -1)
        return ChosenLevel(
            alive.bool(),
            top_ids.long().view(split),
            top.view(split),
            ids.long().view(*split[:2], self._drawn),
            counts.long(),
            q,
        )


def _most_probable(q: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the most probable columns of each row of q, (R, N) float32, and their probabilities.

    Lower ids are first among equals: the bits of a positive float rise with it, and follow a key's
    inverted column.
    """
    most = (1 << NUMBER_BITS) - 1
    inverted = most - torch.arange(q.shape[1], device=q.device)
    keys = (q.view(torch.int32).long() << NUMBER_BITS) | inverted
    ids = most - (keys.topk(count).values & most)
    return ids, q.gather(1, ids)
