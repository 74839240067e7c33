"""Branches: how many start at a place, and where each ends."""

from __future__ import annotations

import pytest
import torch

from specscope.engine.drafting.level import levels, next_level
from specscope.engine.drafting.tree import Branches, Node, root
from specscope.engine.sampling.draws import Draws
from specscope.engine.types import Sampling

ONE = Sampling(1.0)


def choose(rows: list[list[float]], above: list[Node], shape: Branches, sampled: bool) -> list[Node]:
    (found,) = levels([torch.tensor(rows, dtype=torch.float64).log()], shape, ONE, sampled=sampled)
    return next_level(found, above, shape, position=7, sampling=ONE, draws=Draws(3, 0), sampled=sampled)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize(
    ("width", "row", "count"),
    [
        (4, [0.25, 0.25, 0.25, 0.25], 3),
        (4, [0.5, 0.3, 0.2, 0.0], 2),
        (4, [0.1, 0.76, 0.1, 0.04], 1),
        (4, [0.0, 1.0, 0.0, 0.0], 1),
        (1, [0.25, 0.25, 0.25, 0.25], 1),
        (16, [0.5, 0.5, 0.0, 0.0], 2),
    ],
)
def test_the_less_sure_the_drafter_the_more_siblings(width, row, count, sampled):
    """max(1, floor(width (1 - q))), and at most the tokens of positive q."""
    nodes = choose([row], [root(ONE, sampled)], Branches(width, 3, 0.5), sampled)
    assert len({node.token for node in nodes}) == len(nodes) == count
    assert all(row[node.token] > 0 for node in nodes)
    if not sampled:
        assert nodes[0].token == row.index(max(row))


@pytest.mark.parametrize("sampled", [True, False])
def test_a_branch_ends_before_an_unsure_place_but_has_a_child_after_its_sibling(sampled):
    shape, unsure, sure = Branches(4, 5, 0.5), [0.25] * 4, [0.0, 0.4, 0.5, 0.1]
    siblings = [Node(0, 0, 0.0, (0,)), Node(0, 1, 0.0, (1,))]
    below = choose([unsure, sure], siblings, shape, sampled)
    assert [node.parent for node in below] == [0, 1]
    assert shape.onward(below) == [0, 1]
    assert [node.parent for node in choose([unsure, sure], below, shape, sampled)] == [1]
    assert choose([unsure, unsure], below, shape, sampled) == []


@pytest.mark.parametrize("sampled", [True, False])
def test_a_single_chain_may_be_empty(sampled):
    shape = Branches(0, 5, 0.5)
    assert choose([[0.25] * 4], [root(ONE, sampled)], shape, sampled) == []
    first = choose([[0.0, 0.6, 0.4, 0.0]], [root(ONE, sampled)], shape, sampled)
    assert len(first) == 1
    assert choose([[0.25] * 4], first, shape, sampled) == []
    assert (shape.parents, shape.children, Branches(3, 4, 0.5).parents) == (5, 1, 10)
