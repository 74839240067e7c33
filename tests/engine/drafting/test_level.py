"""The rows of a level: most probable tokens with ties, several trees at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specscope.engine.drafting import level
from specscope.engine.drafting.level import SPARE, ranked
from specscope.engine.drafting.tree import Branches, Dynamic, Static, Wide
from specscope.engine.errors import ModelError
from specscope.engine.types import Sampling

SHAPES = (Wide(7, 3), Dynamic(6, 3, 9), Static(((0,), (1,), (0, 0), (0, 1), (0, 2))), Branches(5, 3, 0.1))


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=60),
    st.integers(1, 9),
)
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
    alone = level.levels(logits, shape, sampling, sampled=sampled)
    stacked = level._levels(torch.cat(logits), [1, 4, 2], shape, sampling, sampled)
    for a, b in zip(alone, stacked, strict=True):
        torch.testing.assert_close(a.q, b.q)
        assert [[token for token, _ in top] for top in a.tops] == [
            [token for token, _ in top] for top in b.tops
        ]
        assert len(a.tops) == len(a.q)
        assert a.probability(0, 7) == pytest.approx(float(a.q[0, 7]))


def test_children_is_the_largest_number_of_children_of_a_node() -> None:
    assert [shape.children for shape in SHAPES] == [7, 6, 3, 5]


def test_logits_that_are_not_numbers_are_an_error() -> None:
    with pytest.raises(ModelError, match="the model's logits are not finite numbers"):
        level.levels([torch.full((1, 9), torch.nan)], SHAPES[0], Sampling(), sampled=False)
