"""Choose the next level of a token tree from the drafter's rows, by the tree's shape."""

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
        logits: The drafter's rows after the parents, (R, V); (1, V) if one row serves all of them.
            A node's token is a column's number.
        above: The R nodes that get children; `root` for the first level.
        shape: How the tree grows.
        position: Position of the new tokens.
        sampling: Its warp makes q.
        draws: Node i of a sampled level uses the number with the key (position, "draft", i).
        sampled: Draw from q; ignored at temperature 0.

    Returns:
        The nodes, siblings together and in the order drawn, or by falling probability; and their
        rows, shaped like the logits: q of a sampled tree, else the unwarped probabilities.
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
