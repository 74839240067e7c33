"""Choose the next level of token trees from the drafter's rows, by the trees' shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specscope.engine.drafting.tree import Node, TreeShape, line
from specscope.engine.errors import ModelError
from specscope.engine.sampling.draws import (
    NOT_FINITE,
    TOP,
    Draws,
    Key,
    Top,
    argmax,
    damped,
    most_probable,
    process_logits,
    softmax,
)
from specscope.engine.types import Damping, Sampling

SPARE = 8
"""Tokens read in addition, so that a tie with the last one wanted is seen."""


class Level(NamedTuple):
    """The drafter's rows after the nodes of a tree that get children."""

    q: Tensor
    """A sampled level's q, else the plain softmax, (R, V); (1, V) if one row serves all.

    That of a sampled level is on the CPU. A token is a column's number."""
    tops: Sequence[Top]
    """The most probable tokens of each row, falling, with lower ids first among equals: as many as
    the trace shows, and as many as a node that is not sampled gets children. Those of a chain are
    in any order among equals."""
    argmax: Sequence[int] = ()
    """Of a chain that is not drawn: the token of each row's largest logit. Trees take the most
    probable tokens: two logits can round to one probability."""

    def probability(self, row: int, token: int) -> float:
        found = self.tops[row][0][1] if self.argmax else dict(self.tops[row]).get(token)
        return float(self.q[row, token]) if found is None else found


def levels(
    logits: Sequence[Tensor],
    shape: TreeShape,
    sampling: Sampling,
    *,
    sampled: bool,
    chain: bool = False,
    damping: Damping | None = None,
) -> list[Level]:
    """Return the next level of several trees, before its nodes are chosen.

    On a GPU all rows are one call and one copy to the CPU. On a CPU a tree's rows alone stay in its
    caches: 32 trees of 6 rows of 49,152 tokens take 12 ms one by one, and 54 ms at once.
    `logits` has for each tree the drafter's rows after the parents, (R, V), or (1, V) if one row
    serves all of them; `sampling`'s logits processors make q. `sampled` draws from q; it is ignored
    at temperature 0. `damping` changes a q that is drawn from. A ModelError if the logits are not
    finite.
    """
    how = shape, sampling, sampled, chain, damping
    if len(logits) == 1 or not logits[0].is_cuda:
        return [_levels(rows, [len(rows)], *how)[0] for rows in logits]
    counts = [len(rows) for rows in logits]
    return _levels(torch.cat(list(logits)), counts, *how)


def _levels(
    logits: Tensor,
    counts: Sequence[int],
    shape: TreeShape,
    sampling: Sampling,
    sampled: bool,
    chain: bool = False,
    damping: Damping | None = None,
) -> list[Level]:
    drawn_from_q = sampled and not sampling.greedy
    q = process_logits(logits, sampling) if drawn_from_q else softmax(logits)
    if drawn_from_q and damping is not None:
        q = damped(q, damping)
    count = TOP if drawn_from_q else max(TOP, shape.children)
    tops = most_probable(q, TOP) if chain else ranked(q, count)
    best = argmax(logits) if chain and not drawn_from_q else ()
    parts, first = (q.cpu() if drawn_from_q else q).split(list(counts)), 0
    found = list[Level]()
    for part in parts:
        rows = slice(first, first + len(part))
        found.append(Level(part, tops[rows], best[rows]))
        first += len(part)
    return found


def next_level(
    level: Level,
    above: Sequence[Node],
    shape: TreeShape,
    *,
    position: int,
    sampling: Sampling,
    draws: Draws,
    sampled: bool,
) -> list[Node]:
    """Choose the nodes of the next level.

    Args:
        level: The rows after the parents.
        above: The R nodes that get children; `root` for the first level.
        shape: How the tree grows.
        position: Position of the new tokens.
        sampling: The sampling of the level.
        draws: Node i of a sampled level uses the number with the key (position, "draft", i).
        sampled: As for `levels`.

    Returns:
        The nodes, siblings together and in the order drawn, or by falling probability.
    """
    if level.argmax:
        return [
            Node(i, token, node.path) for i, (node, token) in enumerate(zip(above, level.argmax, strict=True))
        ]
    if not sampled or sampling.greedy:
        return shape.best(level.tops, above)
    support = (level.q > 0).sum(-1).tolist()
    counts = shape.counts(above, support * (len(above) // len(support)), level.tops)
    return _draw(level.q, above, counts, position, draws)


def ranked(rows: Tensor, count: int, more_than: float = 0.0) -> list[Top]:
    """Return the tokens with the largest numbers of each row, (R, V), above a bound.

    The rows are probabilities or logits. Lower ids are first among equals.

    Raises:
        ModelError: A number is not one.
    """
    values, ids = rows.topk(min(count + SPARE, rows.shape[1]))
    found = list[Top]()
    for row, (numbers, tokens) in enumerate(
        zip(*torch.stack((values.double(), ids.double())).tolist(), strict=True)
    ):
        if numbers[0] != numbers[0]:
            raise ModelError(NOT_FINITE)
        tied = count < len(numbers) < rows.shape[1] and numbers[count - 1] == numbers[-1]
        top = _first_of(rows[row], count) if tied else zip(map(int, tokens), numbers, strict=True)
        best = sorted(top, key=lambda one: (-one[1], one[0]))
        found.append(tuple(one for one in best[:count] if one[1] > more_than))
    return found


def _first_of(values: Tensor, count: int) -> list[tuple[int, float]]:
    """Return (index, value) of the largest values, and of the first ones equal to the last."""
    least = values.topk(count).values[-1]
    larger, equal = (values > least).nonzero()[:, 0], (values == least).nonzero()[:count, 0]
    indices = torch.cat([larger, equal])
    return list(zip(indices.tolist(), values[indices].tolist(), strict=True))


def drawn(children: Sequence[Sequence[int]], above: Sequence[Node]) -> list[Node]:
    return [
        Node(parent, token, node.path - child, (*node.ranks, child))
        for parent, (node, tokens) in enumerate(zip(above, children, strict=True))
        for child, token in enumerate(tokens)
    ]


def _draw(q: Tensor, above: Sequence[Node], counts: Sequence[int], position: int, draws: Draws) -> list[Node]:
    children, node = list[list[int]](), 0
    for parent, count in enumerate(counts):
        rest = q[line(parent, q)].clone()
        children.append([])
        for _ in range(count):
            token = draws.choose(Key(position, "draft", node), rest)
            rest[token] = 0
            children[-1].append(token)
            node += 1
    return drawn(children, above)
