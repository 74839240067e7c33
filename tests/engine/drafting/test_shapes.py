"""Static and dynamic trees: how many children a node gets, and which nodes stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.drafting.level import levels, next_level
from engine.drafting.static import tree
from engine.drafting.tree import Dynamic, Node, Static, TreeShape, Wide, root
from engine.errors import UsageError
from engine.sampling.draws import Draws, Key, pick
from engine.types import Sampling

ONE = Sampling(1.0)
SMALL = Static(((0,), (1,), (0, 0), (0, 1), (1, 0)))


def choose(
    rows: list[list[float]], leaves: list[Node], shape: TreeShape, sampled: bool = False
) -> list[Node]:
    logits = torch.tensor(rows, dtype=torch.float64).log()
    (found,) = levels([logits], shape, ONE, sampled=sampled)
    return next_level(found, leaves, shape, position=7, sampling=ONE, draws=Draws(3, 0), sampled=sampled)


def test_a_static_tree_takes_the_most_probable_tokens_after_each_node():
    first = choose([[0.1, 0.4, 0.2, 0.3]], [root(ONE, False)], SMALL)
    assert [(n.token, n.ranks) for n in first] == [(1, (0,)), (3, (1,))]
    assert SMALL.onward(first) == [0, 1]
    second = choose([[0.7, 0.1, 0.1, 0.1], [0.25] * 4], first, SMALL)
    assert [(n.parent, n.token, n.ranks) for n in second] == [(0, 0, (0, 0)), (0, 1, (0, 1)), (1, 0, (1, 0))]
    assert [n.path for n in second] == pytest.approx([0.28, 0.04, 0.075])
    assert SMALL.onward(second) == []


def test_one_row_serves_all_nodes_of_a_level():
    leaves = choose([[0.1, 0.4, 0.2, 0.3]], [root(ONE, False)], SMALL)
    row = [0.2, 0.3, 0.4, 0.1]
    for sampled in (False, True):
        assert choose([row], leaves, SMALL, sampled) == choose([row, row], leaves, SMALL, sampled)


def test_children_of_a_sampled_static_tree_are_drawn_without_replacement():
    leaves = [Node(0, 1, 0.0, (0,)), Node(0, 3, -1.0, (1,))]
    row = [0.4, 0.3, 0.2, 0.1]
    nodes = choose([row], leaves, SMALL, sampled=True)
    rest = torch.tensor(row, dtype=torch.float64)
    number = Draws(3, 0).value
    first = pick(number(Key(7, "draft", 0)), rest)
    second = pick(number(Key(7, "draft", 1)), rest.index_fill(0, torch.tensor(first), 0))
    other = pick(number(Key(7, "draft", 2)), rest)
    assert [(n.parent, n.token) for n in nodes] == [(0, first), (0, second), (1, other)]


def test_if_q_has_too_few_tokens_nodes_and_their_descendants_are_missing():
    first = choose([[1.0, 0.0, 0.0, 0.0]], [root(ONE, True)], SMALL, sampled=True)
    assert [n.ranks for n in first] == [(0,)]
    second = choose([[0.0, 0.5, 0.0, 0.5]], first, SMALL)
    assert [(n.token, n.ranks) for n in second] == [(1, (0, 0)), (3, (0, 1))]


def test_a_tree_can_be_cut():
    assert [tree("eagle").cut(n).parents for n in range(1, 6)] == [1, 5, 9, 10, 11]
    assert len(tree("eagle").cut(2).paths) == 12
    assert tree("medusa").depth == 4


def test_a_dynamic_tree_extends_and_keeps_the_most_probable_paths():
    shape = Dynamic(2, 3, 4)
    first = choose([[0.6, 0.3, 0.1]], [root(ONE, False)], shape)
    assert shape.onward(first) == [0, 1]
    second = choose([[0.5, 0.4, 0.1], [0.9, 0.1, 0.0]], first, shape)
    assert [(n.parent, n.token) for n in second] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [n.path for n in second] == pytest.approx([0.3, 0.24, 0.27, 0.03])
    assert shape.onward(second) == [0, 2]
    values = [n.path for n in (*first, *second)]
    assert shape.kept(values) == [0, 1, 2, 4]


def test_equal_paths_stay_in_the_order_drafted_so_parents_stay_with_their_children():
    assert Dynamic(2, 3, 3).kept([1.0, 0.5, 1.0, 0.5, 1.0]) == [0, 2, 4]
    assert Dynamic(2, 3, 2).kept([0.5, 0.5, 0.5]) == [0, 1]


def test_a_dynamic_tree_cannot_be_sampled():
    with pytest.raises(ValueError, match="cannot be sampled"):
        choose([[0.5, 0.5]], [root(ONE, True)], Dynamic(2, 2, 2), sampled=True)


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
