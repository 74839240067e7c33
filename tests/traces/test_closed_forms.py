"""Closed forms against rounds played out, exact values, and PEARL's gamma = round(c)."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import UsageError
from engine.simulate.profile import Profile, profiles
from traces.closed_forms import (
    best_gamma,
    dsi_speedup,
    pearl_speedup,
    pearl_tokens,
    speculative_speedup,
    speculative_tokens,
)

ROUNDS = 20_000


def played_speculative(rate: float, gamma: int) -> float:
    accepted = np.random.default_rng(7).random((ROUNDS, gamma)) < rate
    return float(accepted.cumprod(axis=1).sum(axis=1).mean()) + 1


def played_pearl(rate: float, gamma: int) -> float:
    """Algorithm 2 on coin tosses: a round checks the pending tokens and the next chunk's first."""
    draw = np.random.default_rng(8)
    pending = committed = 0
    for _ in range(ROUNDS):
        accepted = (draw.random(pending + 1) < rate).tolist()
        n = accepted.index(False) if False in accepted else len(accepted)
        committed += n if n == len(accepted) else n + 1
        pending = gamma - 1 if n == len(accepted) else 0
    return committed / ROUNDS


@pytest.mark.parametrize("gamma", [1, 2, 5, 9])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 0.97, 1.0])
def test_tokens_per_round_against_rounds_played_out(rate: float, gamma: int):
    assert speculative_tokens(rate, gamma) == pytest.approx(played_speculative(rate, gamma), rel=0.02)
    assert pearl_tokens(rate, gamma) == pytest.approx(played_pearl(rate, gamma), rel=0.02)


def test_exact_values():
    assert speculative_tokens(0.8, 5) == pytest.approx((1 - 0.8**6) / (1 - 0.8))
    assert speculative_tokens(1, 5) == 6
    assert speculative_tokens(0, 5) == 1
    # 3 + 1 tokens at c = 2: 3 drafts take 1.5 target forwards
    assert speculative_speedup(1, 3, 2) == pytest.approx(4 / 2.5)
    assert pearl_tokens(1, 5) == 5
    assert pearl_tokens(0, 5) == 1
    assert pearl_tokens(0.5, 1) == 1
    # gamma 2 at a = 1/2: 2/5 of the rounds are post-verify, with 3/2 tokens each
    assert pearl_tokens(0.5, 2) == pytest.approx(0.6 + 0.4 * 1.5)
    assert pearl_speedup(0.5, 2, 4) == pytest.approx(1.2)
    assert pearl_speedup(0.5, 2, 1) == pytest.approx(0.6)


def test_pearl_is_never_faster_than_its_drafter():
    """Section 4.4.2: with every token accepted the speed-up is capped at c."""
    for c in (1, 2.66, 3, 5.42):
        assert max(pearl_speedup(1, gamma, c) for gamma in range(1, 33)) == pytest.approx(c)


@pytest.mark.parametrize("percent", range(77, 92))
def test_round_of_c_is_pearls_best_gamma_for_every_pair_of_the_paper(percent: int):
    for profile in (Profile.load(name) for name in profiles() if name.startswith("pearl-")):
        for pair in profile.pairs:
            c = profile.latency(pair).c
            assert best_gamma(pearl_speedup, percent / 100, c) == round(c), pair


def test_outside_that_range_round_of_c_is_not_always_best():
    c = Profile.load("pearl-3xA100").latency("deepseek-1.3-33").c
    assert best_gamma(pearl_speedup, 0.70, c) == 3 != round(c)
    c = Profile.load("pearl-4xA100").latency("llama-2-7-70").c
    assert best_gamma(pearl_speedup, 0.95, c) == 6 != round(c)


def test_dsi_takes_a_drafter_forward_per_accepted_token():
    assert dsi_speedup(0, 5) == 1
    assert dsi_speedup(1, 5) == pytest.approx(5)
    assert dsi_speedup(0.75, 4) == pytest.approx(1 / (0.75 / 4 + 0.25))
    with pytest.raises(UsageError, match=r"c is 0\.5; it must be at least 1"):
        dsi_speedup(0.5, 0.5)


def test_best_gamma_of_speculative_decoding():
    assert best_gamma(speculative_speedup, 0.0, 5) == 1
    assert best_gamma(speculative_speedup, 1.0, 5, limit=12) == 12
    chosen = best_gamma(speculative_speedup, 0.8, 5)
    assert chosen == max(range(1, 33), key=lambda g: (1 - 0.8 ** (g + 1)) / 0.2 / (g / 5 + 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: speculative_tokens(1.1, 3), "acceptance rate is 1.1; it must be at least 0 and at most 1"),
        (lambda: pearl_tokens(-0.1, 3), "acceptance rate is -0.1"),
        (lambda: pearl_tokens(0.5, 0), "gamma is 0; it must be at least 1"),
        (lambda: pearl_speedup(0.5, 2, 0), "c is 0; it must be more than 0"),
        (lambda: speculative_speedup(0.5, 2, -1), "c is -1"),
    ],
)
def test_wrong_arguments(call, message: str):
    with pytest.raises(UsageError, match=message):
        call()
