"""Which nodes a token tree has: chosen level by level from the drafter's rows, by pure functions.

Source: SpecInfer (Miao et al. 2024), token trees of a small model; a fixed width per level as in EasySpec's ablation
(section 5). A level holds at most `width` nodes, wherever in the level above their parents stand:

- A tree that is a function of the prefix (rule 2) keeps the nodes whose paths the drafter finds most probable.
- A sampled tree (rule 1) draws the children of a node from its warped q without replacement. How many a node gets is
  fixed by the shape above it and by how many tokens its q allows at all, before any of them is drawn: so the draws
  are those of q, whatever was drawn elsewhere. Kept are the places that need the fewest rejections to be reached (the
  i-th child of a node is tested after i rejections). If every test of a sibling accepts with one and the same
  probability, whatever it is, no other `width` places of a level are reached more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor

from engine.draws import Draws, Key, softmax, warp
from engine.types import Sampling


class Node(NamedTuple):
    """One node of a level."""

    parent: int
    """Index of its parent in the level above; 0 is the prefix's last token for the first level."""
    token: int
    path: float
    """Of a tree that is a function of the prefix: the drafter's probability of the path to it. Of a sampled one: minus
    the rejections on the way to it. Larger is better."""


def root(sampling: Sampling, sampled: bool) -> Node:
    """Return what stands above the first level: the prefix's last token."""
    return Node(0, -1, 0.0 if sampled and not sampling.greedy else 1.0)


def next_level(
    logits: Tensor,
    above: Sequence[Node],
    width: int,
    *,
    position: int,
    sampling: Sampling,
    draws: Draws,
    sampled: bool,
) -> tuple[list[Node], Tensor]:
    """Choose the nodes of the next level.

    Args:
        logits: The drafter's rows after the nodes above, (R, V).
        above: The R nodes above; `root` at first.
        width: Nodes at most, at least 1.
        position: Position of the tokens chosen.
        sampling: Its warp makes q.
        draws: Gives node i of a sampled level the number keyed (position, "draft", i).
        sampled: Draw from q; ignored at temperature 0.

    Returns:
        The nodes, children of one parent next to each other and in the order drawn or falling in probability; and the
        rows they come from, (R, V): q of a sampled tree, else the unwarped probabilities.
    """
    if sampled and not sampling.greedy:
        q = warp(logits, sampling)
        return _drawn(q.cpu(), above, width, position, draws), q
    q = softmax(logits)
    return _most_probable(q, above, width), q


def shape(rejections: Sequence[float], support: Sequence[int], width: int) -> list[int]:
    """Return how many children each node of a level gets: the `width` places that need the fewest rejections.

    Of places that need equally many, those of earlier parents are kept.

    Args:
        rejections: On the way to each node, (R,).
        support: Tokens of positive q after each node, (R,): it cannot have more children.
        width: Children of all nodes together, at most.
    """
    places = sorted(
        (before + child, parent)
        for parent, (before, most) in enumerate(zip(rejections, support, strict=True))
        for child in range(min(width, most))
    )[:width]
    kept = [parent for _, parent in places]
    return [kept.count(parent) for parent in range(len(rejections))]


def _drawn(q: Tensor, above: Sequence[Node], width: int, position: int, draws: Draws) -> list[Node]:
    counts = shape([-node.path for node in above], (q > 0).sum(-1).tolist(), width)
    nodes = list[Node]()
    for parent, count in enumerate(counts):
        rest = q[parent].clone()
        for child in range(count):
            token = draws.choose(Key(position, "draft", len(nodes)), rest)
            rest[token] = 0
            nodes.append(Node(parent, token, above[parent].path - child))
    return nodes


def _most_probable(q: Tensor, above: Sequence[Node], width: int) -> list[Node]:
    """Keep the most probable paths; of equally probable ones those of the earlier parent, then of the lower token id."""
    before = torch.tensor([node.path for node in above], dtype=torch.float64, device=q.device)
    paths = (q.double() * before[:, None]).flatten()
    least = paths.topk(min(width, len(paths))).values[-1]
    found = ((paths >= least) & (paths > 0)).nonzero()[:, 0]  # rising: ties stay in the order asked for
    best = paths[found].sort(descending=True, stable=True).indices[:width]
    kept = zip(found[best].tolist(), paths[found[best]].tolist(), repeat(q.shape[1]))
    nodes = [Node(place // size, place % size, path) for place, path, size in kept]
    return sorted(nodes, key=lambda node: node.parent)
