"""Tree nodes are a pure function of the drafter's rows, the leaves and keyed draws.

How many children a node gets, and which nodes stay, depends on the tree's shape.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting.level import SPARE, _levels, levels, next_level, ranked
from specscope.engine.drafting.static import tree
from specscope.engine.drafting.tree import Branches, Dynamic, Node, Static, TreeShape, Wide, root
from specscope.engine.errors import ModelError, UsageError
from specscope.engine.sampling.draws import Draws, Key, pick
from specscope.engine.types import Sampling

ONE = Sampling(1.0)


SMALL = Static(((0,), (1,), (0, 0), (0, 1), (1, 0)))


def choose(
    rows: list[list[float]], leaves: list[Node], shape: TreeShape, sampled: bool = False
) -> list[Node]:
    logits = torch.tensor(rows, dtype=torch.float64).log()
    (found,) = levels([logits], shape, ONE, sampled=sampled)
    return next_level(found, leaves, shape, position=7, sampling=ONE, draws=Draws(3, 0), sampled=sampled)


def level(rows: list[list[float]], leaves: list[Node], width: int, sampled: bool):
    return choose(rows, leaves, Wide(width, 3), sampled)


def children(rejections: list[float], support: list[int], width: int) -> list[int]:
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
    found = level([[0.25] * 4] * 2, [Node(0, 1, 0.5), Node(0, 2, 0.5)], 6, False)
    assert [(n.parent, n.token) for n in found] == [*((0, t) for t in range(4)), (1, 0), (1, 1)]


def test_tokens_of_probability_0_are_no_nodes():
    for sampled in (True, False):
        nodes = level([[0.5, 0.0, 0.5]], [root(ONE, sampled)], 4, sampled)
        assert sorted(n.token for n in nodes) == [0, 2]


def test_siblings_are_drawn_without_replacement_each_with_its_own_number():
    q = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    nodes = level([q.tolist()], [root(ONE, True)], 4, True)
    assert sorted(n.token for n in nodes) == [0, 1, 2, 3]
    for i, node in enumerate(nodes):
        assert node.token == pick(Draws(3, 0).value(Key(7, "draft", i)), q)
        q[node.token] = 0
    assert [n.path for n in nodes] == [0, -1, -2, -3]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6)), min_size=1, max_size=6),
    st.integers(1, 12),
    st.floats(0.05, 0.95),
)
def test_no_other_shape_is_reached_more_often_at_equal_acceptance_rates(nodes, width, alpha):
    """The shape against all others, for tests that accept with one probability."""
    rejections, support = zip(*nodes, strict=True)
    counts = children(rejections, support, width)
    assert sum(counts) == min(width, sum(support))
    assert all(count <= most for count, most in zip(counts, support, strict=True))

    def reached(counts) -> float:
        return sum((1 - alpha) ** (r + i) for r, n in zip(rejections, counts, strict=True) for i in range(n))

    if len(nodes) <= 3:
        others = itertools.product(*(range(min(most, width) + 1) for most in support))
        assert all(reached(o) <= reached(counts) + 1e-12 for o in others if sum(o) <= width)


@pytest.mark.parametrize("text", ["paths = " + "[" * 20_000, f"paths = [[{'9' * 5000}]]", "paths", "\0"])
def test_the_error_for_an_unreadable_tree_file_names_it(text: str, tmp_path: Path):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"own\.toml cannot be read: ") as error:
        tree(str(path))
    assert "\n" not in str(error.value)


def test_a_changed_tree_file_is_read_again(tmp_path: Path):
    path = tmp_path / "own.toml"
    for paths in ([[0]], [[0], [1]]):
        path.write_text(f"paths = {paths}\n")
        assert [[*node] for node in tree(str(path)).paths] == paths


@pytest.mark.parametrize("shape", [Wide(3, 4), Dynamic(3, 4, 9), SMALL, tree("medusa"), tree("eagle")])
def test_parents_is_the_largest_number_of_q_rows(shape):
    leaves, parents = [root(ONE, False)], 0
    for _ in range(shape.depth):
        parents += len(leaves)
        nodes = choose([[0.05] * 20] * len(leaves), leaves, shape)
        leaves = [nodes[i] for i in shape.onward(nodes)]
        if not leaves:
            break
    assert parents <= shape.parents
    assert [tree("eagle").cut(n).parents for n in range(1, 6)] == [1, 5, 9, 10, 11]


def test_a_dynamic_tree_keeps_parents_with_their_children_and_cannot_be_sampled():
    assert Dynamic(2, 3, 3).kept([1.0, 0.5, 1.0, 0.5, 1.0]) == [0, 2, 4]
    assert Dynamic(2, 3, 2).kept([0.5, 0.5, 0.5]) == [0, 1]
    with pytest.raises(ValueError, match="cannot be sampled"):
        choose([[0.5, 0.5]], [root(ONE, True)], Dynamic(2, 3, 4), sampled=True)


# The rows of a level: most probable tokens with ties, several trees at once.


SHAPES = (Wide(7, 3), Dynamic(6, 3, 9), Static(((0,), (1,), (0, 0), (0, 1), (0, 2))), Branches(5, 3, 0.1))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9))
def test_lower_ids_are_first_among_equals_however_many_there_are(weights: list[int], count: int) -> None:
    q = torch.tensor([weights], dtype=torch.float32)
    expected = sorted(((i, float(w)) for i, w in enumerate(weights) if w), key=lambda one: (-one[1], one[0]))
    assert ranked(q, count) == [tuple(expected[:count])]


def test_ties_beyond_the_tokens_read_are_seen() -> None:
    q = torch.full((2, 300), 1 / 300)
    q[1, 250:] = 2 / 300
    first, second = ranked(q, 3)
    assert [token for token, _ in first] == [0, 1, 2]
    assert [token for token, _ in second] == [250, 251, 252]
    assert SPARE < 50


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_k=20)])
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__)
def test_trees_stacked_as_on_a_gpu_have_the_levels_of_each_alone(shape, sampled, sampling) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = [3 * torch.randn(rows, 40, generator=generator) for rows in (1, 4, 2)]
    alone = levels(logits, shape, sampling, sampled=sampled)
    stacked = _levels(torch.cat(logits), [1, 4, 2], shape, sampling, sampled)
    for a, b in zip(alone, stacked, strict=True):
        torch.testing.assert_close(a.q, b.q)
        first, second = ([[token for token, _ in top] for top in found.tops] for found in (a, b))
        assert first == second
        assert len(a.tops) == len(a.q)
        assert a.probability(0, 7) == pytest.approx(float(a.q[0, 7]))


def test_logits_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(ModelError, match="the model's logits are not finite numbers"):
        levels([torch.full((1, 9), torch.nan)], SHAPES[0], Sampling(), sampled=False)
