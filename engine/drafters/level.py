"""The next level of a token tree: chosen by its shape, from the drafter's rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.drafters.tree import Node, TreeShape, line
from engine.draws import Draws, Key, softmax, warp
from engine.types import Sampling


def next_level(
    logits: Tensor,
    above: Sequence[Node],
    shape: TreeShape,
    *,
    position: int,
    sampling: Sampling,
    draws: Draws,
    sampled: bool,
) -> tuple[list[Node], Tensor]:
    """Choose the nodes of the next level.

    Args:
        logits: The drafter's rows after the nodes above, (R, V); (1, V) where one row holds for all of them.
        above: The R nodes that get children; `root` at first.
        shape: How the tree grows.
        position: Position of the tokens chosen.
        sampling: Its warp makes q.
        draws: Gives node i of a sampled level the number keyed (position, "draft", i).
        sampled: Draw from q; ignored at temperature 0.

    Returns:
        The nodes, children of one parent next to each other and in the order drawn or falling in probability; and the
        rows they come from, as many as there are of logits: q of a sampled tree, else the unwarped probabilities.
    """
    if sampled and not sampling.greedy:
        q = warp(logits, sampling)
        support = (q > 0).sum(-1).tolist()
        counts = shape.counts(above, support * (len(above) // len(support)))
        return _drawn(q.cpu(), above, counts, position, draws), q
    q = softmax(logits)
    return shape.best(q, above), q


def _drawn(
    q: Tensor, above: Sequence[Node], counts: Sequence[int], position: int, draws: Draws
) -> list[Node]:
    nodes = list[Node]()
    for parent, count in enumerate(counts):
        rest = q[line(parent, q)].clone()
        for child in range(count):
            token = draws.choose(Key(position, "draft", len(nodes)), rest)
            rest[token] = 0
            nodes.append(Node(parent, token, above[parent].path - child, (*above[parent].ranks, child)))
    return nodes
