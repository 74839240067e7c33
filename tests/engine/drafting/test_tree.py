"""Tree nodes are a pure function of the drafter's rows, the leaves and keyed draws."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.drafting.level import levels, next_level
from engine.drafting.tree import Node, Wide, root
from engine.sampling.draws import Draws, Key, pick
from engine.types import Sampling

ONE = Sampling(1.0)


def level(rows: list[list[float]], leaves: list[Node], width: int, sampled: bool, sampling: Sampling = ONE):
    """Choose from rows of probabilities."""
    logits = torch.tensor(rows, dtype=torch.float64).log()
    draws = Draws(3, 0)
    shape = Wide(width, 3)
    (found,) = levels([logits], shape, sampling, sampled=sampled)
    return next_level(found, leaves, shape, position=7, sampling=sampling, draws=draws, sampled=sampled)


def shape(rejections: list[float], support: list[int], width: int) -> list[int]:
    """Return how many children each node gets in a sampled tree."""
    return Wide(width, 3).counts([Node(0, 0, -n) for n in rejections], support)


def test_the_most_probable_paths_are_kept_with_any_parents():
    first = level([[0.5, 0.3, 0.15, 0.05]], [root(ONE, False)], 3, False)
    assert [(n.parent, n.token) for n in first] == [(0, 0), (0, 1), (0, 2)]
    assert [n.path for n in first] == pytest.approx([0.5, 0.3, 0.15])
    rows = [[0.1, 0.2, 0.3, 0.4], [0.9, 0.02, 0.04, 0.04], [0.25, 0.25, 0.25, 0.25]]
    second = level(rows, first, 3, False)
    assert [(n.parent, n.token) for n in second] == [(0, 3), (0, 2), (1, 0)]
    assert [n.path for n in second] == pytest.approx([0.2, 0.15, 0.27])


def test_ties_go_to_the_earlier_parent_then_to_the_lower_token():
    even = [[0.25] * 4] * 2
    leaves = [Node(0, 1, 0.5), Node(0, 2, 0.5)]
    for width, expected in (
        (3, [(0, 0), (0, 1), (0, 2)]),
        (6, [*((0, t) for t in range(4)), (1, 0), (1, 1)]),
    ):
        assert [(n.parent, n.token) for n in level(even, leaves, width, False)] == expected


def test_tokens_of_probability_0_are_no_nodes():
    for sampled in (True, False):
        nodes = level([[0.5, 0.0, 0.5]], [root(ONE, sampled)], 4, sampled)
        assert sorted(n.token for n in nodes) == [0, 2]


def test_at_temperature_0_nothing_is_drawn():
    greedy = Sampling()
    assert root(greedy, True) == root(greedy, False)
    rows = [[0.1, 0.6, 0.3]]
    assert level(rows, [root(greedy, True)], 2, True, greedy) == level(
        rows, [root(greedy, False)], 2, False, greedy
    )


def test_siblings_are_drawn_without_replacement_each_with_its_own_number():
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    nodes = level([q.tolist()], [root(ONE, True)], 4, True)
    assert sorted(n.token for n in nodes) == [0, 1, 2, 3]
    for i, node in enumerate(nodes):
        assert node.token == pick(Draws(3, 0).value(Key(7, "draft", i)), q)
        q[node.token] = 0
    assert [n.path for n in nodes] == [0, -1, -2, -3]


def test_q_is_warped_before_the_draw():
    top = level([[0.4, 0.3, 0.2, 0.1]], [root(ONE, True)], 4, True, Sampling(1.0, top_k=2))
    assert sorted(n.token for n in top) == [0, 1]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=6),
    st.integers(1, 12),
    st.floats(0.05, 0.95),
)
def test_no_other_shape_is_reached_more_often_at_equal_acceptance_rates(nodes, width, alpha):
    """The shape against all others, for tests that accept with one probability."""
    rejections, support = zip(*nodes, strict=True)
    counts = shape(rejections, support, width)
    assert sum(counts) == min(width, sum(support))
    assert all(count <= most for count, most in zip(counts, support, strict=True))

    def reached(children) -> float:
        return sum(
            (1 - alpha) ** (r + i) for r, n in zip(rejections, children, strict=True) for i in range(n)
        )

    if len(nodes) <= 3:
        others = itertools.product(*(range(min(most, width) + 1) for most in support))
        assert all(reached(o) <= reached(counts) + 1e-12 for o in others if sum(o) <= width)


@pytest.mark.parametrize(
    ("rejections", "support", "width", "counts"),
    [
        ([0], [99], 4, [4]),
        ([0, 1, 2, 3], [99] * 4, 4, [3, 1, 0, 0]),
        ([0, 1, 2, 1], [99] * 4, 4, [2, 1, 0, 1]),
        ([0, 1, 2, 3], [1, 99, 99, 99], 4, [1, 2, 1, 0]),
        ([0, 0], [1, 1], 4, [1, 1]),
    ],
)
def test_counts_of_children(rejections, support, width, counts):
    assert shape(rejections, support, width) == counts
