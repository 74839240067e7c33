"""Random numbers by key, logits processors, drafting one token, damping, the largest numbers."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from specscope.engine.errors import ModelError
from specscope.engine.sampling.draws import (
    LONG,
    SPREAD,
    Draws,
    Key,
    damped,
    facts,
    largest,
    pick,
    process_logits,
)
from specscope.engine.types import Damping, Sampling
from tests.engine.toy import Table, rows, warp_plainly
from tests.engine.toy_draws import Fixed

ONE, GREEDY = Sampling(1.0), Sampling()
nan = float("nan")


# random numbers


def chi_square(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """Return how many standard deviations the chi-square statistic lies above its mean."""
    degrees = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees)


def test_numbers_are_uniform():
    draws = Draws(3, 0)
    numbers = np.array([draws.value(Key(i, "accept")) for i in range(20_000)])
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.bincount((numbers * 64).astype(int), minlength=64)
    assert chi_square(counts, len(numbers) / 64) < 4


NEIGHBOURS = {
    "position": lambda i: (Draws(3, 0), Key(i + 1, "accept")),
    "purpose": lambda i: (Draws(3, 0), Key(i, "residual")),
    "node": lambda i: (Draws(3, 0), Key(i, "accept", 1)),
    "sequence": lambda i: (Draws(3, 1), Key(i, "accept")),
    "seed": lambda i: (Draws(4, 0), Key(i, "accept")),
}


@pytest.mark.parametrize("what", NEIGHBOURS)
def test_numbers_of_neighbouring_keys_are_independent(what):
    table = np.zeros((8, 8))
    for i in range(0, 12_000, 2):
        other, key = NEIGHBOURS[what](i)
        table[int(Draws(3, 0).value(Key(i, "accept")) * 8), int(other.value(key) * 8)] += 1
    assert chi_square(table, table.sum() / 64) < 4


def test_no_two_keys_share_a_number():
    purposes = ("draft", "accept", "residual", "target")
    numbers = [
        Draws(seed, sequence).value(Key(position, purpose, node))
        for seed in (0, 1, 11)
        for sequence in (0, 1, 11)
        for position in (0, 1, 11, 111)
        for purpose in purposes
        for node in (0, 1, 11)
    ]
    assert len(set(numbers)) == len(numbers)


def test_a_number_does_not_depend_on_earlier_calls():
    first, second = Draws(5, 2), Draws(5, 2)
    second.value(Key(9, "target"))
    assert first.value(Key(1, "draft")) == second.value(Key(1, "draft")) == first.value(Key(1, "draft"))


def test_numbers_are_those_of_released_versions():
    assert Draws(0, 0).value(Key(0, "draft")) == 0.04179569895856039


def test_below_and_choose_follow_the_number():
    draws = Fixed(accept_1=0.25, target_1=0.25)
    assert draws.below(Key(1, "accept"), 0.26)
    assert not draws.below(Key(1, "accept"), 0.25)
    assert draws.choose(Key(1, "target"), np.array([0.25, 0.75])) == 1
    assert draws.choose(Key(1, "target"), torch.tensor([0.26, 0.74])) == 0


def test_choose_has_the_frequencies_of_its_weights():
    draws, weights = Draws(1, 0), np.array([1.0, 0.0, 5.0, 2.0])
    counts = Counter(draws.choose(Key(i, "target"), weights) for i in range(8_000))
    positive = np.array([counts[0], counts[2], counts[3]])
    assert counts[1] == 0
    assert chi_square(positive, np.array([1000, 5000, 2000])) < 4


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("total", [1e-30, 0.3, 1.0, 1e30])
def test_pick_never_returns_an_index_of_weight_zero(u, total):
    weights = np.array([0.0, total / 3, 0.0, total / 7, 0.0, 0.0])
    assert pick(u, weights) in (1, 3)
    assert pick(u, torch.from_numpy(weights).float()) in (1, 3)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [nan, 1.0], [math.inf, 1.0]])
def test_pick_refuses_weights_that_are_no_distribution(weights):
    with pytest.raises(ModelError, match="not finite"):
        pick(0.5, np.array(weights))


# logits processors


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.3),
        Sampling(2.5, top_k=3),
        Sampling(1.0, top_p=0.7),
        Sampling(1.3, top_k=5, top_p=0.6),
        Sampling(1.0, top_k=1),
        Sampling(1.0, top_k=100),
        Sampling(1.0, top_p=1e-9),
        Sampling(1.0, top_p=1e-300),
        Sampling(1.0, top_p=1 - 1e-9),
    ],
)
def test_warp_is_temperature_then_top_k_then_top_p(sampling):
    logits = torch.stack([Table(s, 12)((0,)) for s in range(5)])
    expected = np.stack([warp_plainly(row, sampling) for row in logits])
    np.testing.assert_allclose(process_logits(logits, sampling).numpy(), expected, atol=1e-12)
    single = process_logits(logits.float(), sampling)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), expected, atol=1e-6)


def test_warp_keeps_all_tokens_that_tie_with_the_last_one_kept():
    logits = rows([0.4, 0.2, 0.2, 0.2])
    for sampling in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5)):
        assert process_logits(logits, sampling)[0].tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])
    assert process_logits(logits, Sampling(1.0, top_k=1))[0].tolist() == pytest.approx([1, 0, 0, 0])


def test_warp_keeps_just_enough_for_top_p():
    assert process_logits(rows([0.5, 0.3, 0.2]), Sampling(1.0, top_p=0.5))[0].tolist() == pytest.approx(
        [1, 0, 0]
    )
    assert process_logits(rows([0.5, 0.3, 0.2]), Sampling(1.0, top_p=0.51))[0].tolist() == pytest.approx(
        [0.625, 0.375, 0]
    )


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_a_tiny_temperature_is_the_argmax(temperature):
    logits = torch.tensor([[3.0, 5.0, -2.0], [300.0, -500.0, 299.0]])
    assert process_logits(logits, Sampling(temperature)).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_warp_gives_masked_tokens_probability_zero():
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    assert process_logits(logits, Sampling(1.0, top_k=3, top_p=0.99))[0].tolist() == [0.5, 0, 0.5]


# drafting


def test_facts_are_warped_only_for_sampled_drafts():
    logits, sampling = rows([0.5, 0.3, 0.2], [0.1, 0.3, 0.6]), Sampling(1.0, top_k=2)
    probabilities, tops = facts(logits, [0, 2], sampling, True)
    assert probabilities == pytest.approx((0.625, 2 / 3))
    assert [[t for t, _ in top] for top in tops] == [[0, 1], [2, 1]]
    probabilities, tops = facts(logits, [0, 2], sampling, False, k=1)
    assert probabilities == pytest.approx((0.5, 0.6))
    assert tops == (((0, pytest.approx(0.5)),), ((2, pytest.approx(0.6)),))
    assert facts(logits, [0, 2], GREEDY, True)[0] == pytest.approx((0.5, 0.6))


# Saguaro sampling: the most probable tokens of q are damped.

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


# The largest numbers of long rows.


@pytest.mark.parametrize("width", [1, 100, LONG, LONG + SPREAD, LONG + 1, 49152])
@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("k", [1, 5, 16, 64])
def test_the_largest_numbers_of_long_rows_are_those_of_topk(width: int, count: int, k: int) -> None:
    rows, k = torch.randn(count, width), min(k, width)
    values, columns = largest(rows, k)
    assert torch.equal(values, rows.topk(k).values)
    assert torch.equal(rows.gather(1, columns), values)
    assert all(len(set(row)) == k for row in columns.tolist()), "no column twice"


def test_equal_numbers_are_listed_once_each_and_what_is_no_number_is_first() -> None:
    rows = torch.zeros(2, LONG)
    _, columns = largest(rows, 7)
    assert all(len(set(row)) == 7 for row in columns.tolist())
    rows[1, 3000] = torch.nan
    values, columns = largest(rows, 2)
    assert values[1, 0].isnan()
    assert int(columns[1, 0]) == 3000
