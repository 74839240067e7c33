"""Saguaro sampling: the most probable tokens of q are damped."""

import pytest
import torch

from specscope.engine.sampling.draws import damped
from specscope.engine.types import Damping

Q = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.5, 0.0]])


def test_the_most_probable_tokens_lose_by_the_factor_and_all_are_normalised():
    found = damped(Q, Damping(0.5, 2))
    weights = torch.tensor([[0.1, 0.2, 0.15, 0.2], [0.125, 0.125, 0.25, 0.0]])
    assert torch.allclose(found, weights / weights.sum(-1, keepdim=True))
    assert found.sum(-1).tolist() == pytest.approx([1, 1])


def test_tokens_that_tie_with_the_last_damped_one_are_damped_too():
    (row,) = damped(torch.tensor([[0.4, 0.2, 0.2, 0.2]]), Damping(0.25, 2)).tolist()
    assert row == pytest.approx([0.4, 0.2, 0.2, 0.2])
    (row,) = damped(torch.tensor([[0.3, 0.3, 0.2, 0.2]]), Damping(0.5, 1)).tolist()
    assert row == pytest.approx([0.15 / 0.7, 0.15 / 0.7, 0.2 / 0.7, 0.2 / 0.7])


@pytest.mark.parametrize("damping", [Damping(1.0, 2), Damping(0.1, 4), Damping(0.1, 9)], ids=str)
def test_a_factor_of_1_and_the_damping_of_all_tokens_change_nothing(damping):
    assert damped(Q, damping).tolist() == [pytest.approx(row) for row in Q.tolist()]


def test_no_token_of_probability_0_gets_any():
    q = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    assert ((damped(q, Damping(0.3, 2)) > 0) == (q > 0)).all()
