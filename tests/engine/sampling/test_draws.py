"""Random numbers by key, logits processors, drafting one token, damping, the largest numbers."""

from __future__ import annotations

import itertools
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


def test_numbers_are_those_of_released_versions():
    draws = Draws(0, 0)
    draws.value(Key(9, "target"))  # a number does not depend on earlier calls
    assert draws.value(Key(0, "draft")) == 0.04179569895856039


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


def test_pick_never_returns_an_index_of_weight_zero_and_refuses_what_is_no_distribution():
    for u, total in itertools.product((0.0, 0.5, 1 - 2**-53), (1e-30, 0.3, 1.0, 1e30)):
        weights = np.array([0.0, total / 3, 0.0, total / 7, 0.0, 0.0])
        assert pick(u, weights) in (1, 3)
        assert pick(u, torch.from_numpy(weights).float()) in (1, 3)
    for wrong in ([0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]):
        with pytest.raises(ModelError, match="not finite"):
            pick(0.5, np.array(wrong))


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


INF, TIED, FALLING = math.inf, rows([0.4, 0.2, 0.2, 0.2]), rows([0.5, 0.3, 0.2])
WIDE_APART = torch.tensor([[300.0, -500.0, 299.0]])


@pytest.mark.parametrize(
    ("logits", "sampling", "expected"),
    [
        *((TIED, s, [0.4, 0.2, 0.2, 0.2]) for s in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.5))),
        pytest.param(TIED, Sampling(1.0, top_k=1), [1, 0, 0, 0], id="no tie"),
        pytest.param(FALLING, Sampling(1.0, top_p=0.5), [1, 0, 0], id="just enough"),
        pytest.param(FALLING, Sampling(1.0, top_p=0.51), [0.625, 0.375, 0], id="one more"),
        pytest.param(
            torch.tensor([[0, -INF, 0]]), Sampling(1.0, top_k=3, top_p=0.99), [0.5, 0, 0.5], id="masked"
        ),
        *((WIDE_APART, Sampling(t), [1, 0, 0]) for t in (1e-6, 1e-40, 5e-324)),
    ],
)
def test_the_edges_of_the_warp(logits, sampling, expected):
    """All tokens that tie with the last one kept stay; a tiny temperature is the argmax."""
    assert process_logits(logits, sampling)[0].tolist() == pytest.approx(expected)


def test_facts_are_warped_only_for_sampled_drafts():
    logits, sampling = rows([0.5, 0.3, 0.2], [0.1, 0.3, 0.6]), Sampling(1.0, top_k=2)
    probabilities, tops = facts(logits, [0, 2], sampling, True)
    assert probabilities == pytest.approx((0.625, 2 / 3))
    assert [[t for t, _ in top] for top in tops] == [[0, 1], [2, 1]]
    probabilities, tops = facts(logits, [0, 2], sampling, False, k=1)
    assert probabilities == pytest.approx((0.5, 0.6))
    assert tops == (((0, pytest.approx(0.5)),), ((2, pytest.approx(0.6)),))
    assert facts(logits, [0, 2], GREEDY, True)[0] == pytest.approx((0.5, 0.6))


@pytest.mark.parametrize(
    ("q", "damping", "weights"),
    [
        pytest.param(
            [0.1, 0.4, 0.3, 0.2], Damping(0.5, 2), [0.1, 0.2, 0.15, 0.2], id="the most probable lose"
        ),
        pytest.param([0.25, 0.25, 0.5, 0.0], Damping(0.5, 2), [0.25, 0.25, 0.5, 0.0], id="ties lose, too"),
        pytest.param([0.4, 0.2, 0.2, 0.2], Damping(0.25, 2), [0.4, 0.2, 0.2, 0.2], id="all tie"),
        pytest.param([0.3, 0.3, 0.2, 0.2], Damping(0.5, 1), [0.15, 0.15, 0.2, 0.2], id="the first two tie"),
        *(
            ([0.1, 0.4, 0.3, 0.2], damping, [0.1, 0.4, 0.3, 0.2])
            for damping in (Damping(1.0, 2), Damping(0.1, 4), Damping(0.1, 9))
        ),
        pytest.param([0.0, 1.0, 0.0], Damping(0.3, 2), [0, 1, 0], id="0 stays 0"),
        pytest.param([0.5, 0.5, 0.0], Damping(0.3, 2), [1, 1, 0], id="0 stays 0 beside a tie"),
    ],
)
def test_damping(q, damping, weights):
    """Saguaro sampling: the most probable tokens of q lose by a factor; then q is normalised."""
    expected = torch.tensor(weights) / sum(weights)
    torch.testing.assert_close(damped(torch.tensor([q]), damping)[0], expected)


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
