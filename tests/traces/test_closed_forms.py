"""Closed forms against rounds played out, exact values, and PEARL's gamma = round(c)."""

from __future__ import annotations

from math import floor

import numpy as np
import pytest

from specscope.engine.drafting.pace import Rate
from specscope.engine.errors import UsageError
from specscope.engine.simulate.profile import Profile, profiles
from specscope.traces.facts.closed_forms import (
    best_gamma,
    dsi_blocks_speedup,
    dsi_speedup,
    even,
    layer_parallel_speedup,
    pearl_speedup,
    pearl_tokens,
    rate_at,
    specbranch_speedup,
    speculative_speedup,
    speculative_tokens,
    ssd_hit_rate,
    ssd_speedup,
)

ROUNDS = 20_000


BY_PLACE = (0.9, 0.5, 0.8)
"""Rates of places; those after the third have its rate."""


def rates(rate: Rate, first: int, count: int) -> list[float]:
    """Return the rates of places `first` and later, from 0 on."""
    places = rate if isinstance(rate, tuple) else (rate,)
    return [places[min(place, len(places) - 1)] for place in range(first, first + count)]


def played_speculative(rate: Rate, gamma: int) -> float:
    accepted = np.random.default_rng(7).random((ROUNDS, gamma)) < rates(rate, 0, gamma)
    return float(accepted.cumprod(axis=1).sum(axis=1).mean()) + 1


def played_pearl(rate: Rate, gamma: int) -> float:
    """Algorithm 2 on coin tosses: a round checks the pending tokens and the next chunk's first."""
    draw = np.random.default_rng(8)
    pending = committed = place = 0
    for _ in range(ROUNDS):
        accepted = (draw.random(pending + 1) < rates(rate, place, pending + 1)).tolist()
        n = accepted.index(False) if False in accepted else len(accepted)
        committed += n if n == len(accepted) else n + 1
        place = place + n if n == len(accepted) else 0
        pending = gamma - 1 if n == len(accepted) else 0
    return committed / ROUNDS


@pytest.mark.parametrize("gamma", [1, 2, 5, 9])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 0.97, 1.0, BY_PLACE])
def test_tokens_per_round_against_rounds_played_out(rate: Rate, gamma: int):
    assert speculative_tokens(rate, gamma) == pytest.approx(played_speculative(rate, gamma), rel=0.02)
    assert pearl_tokens(rate, gamma) == pytest.approx(played_pearl(rate, gamma), rel=0.02)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 1.0])
def test_places_of_one_rate_are_that_rate(rate: float, count: int):
    places = (rate,) * count
    for form, more in (
        (speculative_speedup, (4, 3.5)),
        (pearl_speedup, (4, 3.5)),
        (dsi_blocks_speedup, (3, 3.5)),
        (layer_parallel_speedup, (4, 0.3, 0.1)),
        (ssd_speedup, (4, 3.5)),
        (specbranch_speedup, (4, 3.5, 4, 8, 0.5, 0.5)),
    ):
        assert form(places, *more) == pytest.approx(form(rate, *more), rel=1e-6)


def test_one_rate_for_rates_of_places_accepts_as_many_tokens_in_a_row():
    accepted = 0.9 + 0.45 + 0.45 * 0.8 / (1 - 0.8)
    assert even(BY_PLACE) / (1 - even(BY_PLACE)) == pytest.approx(accepted)
    assert even(0.7) == 0.7
    assert [rate_at(BY_PLACE, place) for place in (1, 2, 3, 4, 99)] == [0.9, 0.5, 0.8, 0.8, 0.8]


CLIFF = ssd_hit_rate(0.5, 7, 3, 1)
HITS = 0.5 * 3 / 4 + 0.5 * 5 / 6
"""gamma 1, a = 1/2, 3 guesses, misses 1: a rejection has a branch in 3/4, a bonus in 5/6."""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (speculative_tokens(0.8, 5), (1 - 0.8**6) / (1 - 0.8)),
        (speculative_speedup(1, 3, 2), 4 / 2.5),  # 3 + 1 tokens at c = 2: 3 drafts take 1.5 target forwards
        # gamma 2 at a = 1/2: 2/5 of the rounds are post-verify, with 3/2 tokens each
        (pearl_tokens(0.5, 2), 0.6 + 0.4 * 1.5),
        (pearl_speedup(0.5, 2, 4), 1.2),
        (pearl_speedup(0.5, 2, 1), 0.6),
        (dsi_speedup(0, 5), 1),
        (dsi_speedup(1, 5), 5),
        (dsi_speedup(0.75, 4), 1 / (0.75 / 4 + 0.25)),  # a drafter forward per accepted token
        (dsi_blocks_speedup(0.8, 1, 5), dsi_speedup(0.8, 5)),
        # a = 1/2, blocks of 2: E[ceil(n / 2)] = a / (1 - a^2) = 2/3 blocks of 2/4, 1 verification
        (dsi_blocks_speedup(0.5, 2, 4), 2 / (1 + 2 / 3 * 2 / 4)),
        (layer_parallel_speedup(0.5, 2, 0.2, 0.1), 1.75 / 1.3),
        (layer_parallel_speedup(0.7, 4, 0.2, 0.2), speculative_speedup(0.7, 4, 5)),
        (ssd_hit_rate(0.5, 1, 3, 1), HITS),
        (ssd_hit_rate(1, 4, 1, 1), 1),
        # c = 4: glue and one step fit beside a verification; a miss drafts one token more
        (ssd_speedup(0.5, 1, 4, 3, 1), 1.5 / (HITS + (1 - HITS) * 1.25)),
        # c = 4, gamma 7: eight forwards take two verifications; a miss ends after the fourth
        (ssd_speedup(0.5, 7, 4, 3, 1), speculative_tokens(0.5, 7) / (CLIFF * 2 + (1 - CLIFF) * (1 + 7 / 4))),
    ],
)
def test_exact_values(found: float, expected: float):
    assert found == pytest.approx(expected)


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
        (lambda: ssd_speedup(1.5, 3, 5), "acceptance rate is 1.5"),
        (lambda: ssd_speedup(0.5, 3, 5, 0), "forks is 0"),
        (lambda: specbranch_speedup(0.5, 3, 0), "c is 0"),
        (lambda: specbranch_speedup(0.5, 3, 2, 4, 0), "branches is 0"),
        (lambda: dsi_blocks_speedup(0.5, 6, 5), "c is 5; it must be at least 6"),
        (lambda: dsi_speedup(0.5, 0.5), r"c is 0\.5; it must be at least 1"),
    ],
)
def test_wrong_arguments(call, message: str):
    with pytest.raises(UsageError, match=message):
        call()


def forked_rounds(rate: float, c: float, config: dict, doubt: float, misses: float) -> float:
    """Play SpecBranch's rounds place by place, without any formula."""
    draw, confidences = np.random.default_rng(5).random, (rate + (1 - rate) * doubt, rate * (1 - doubt))
    gamma, length, most, threshold = (config[k] for k in ("gamma", "length", "branches", "threshold"))
    place = lambda: confidences[int(draw() >= rate)] if doubt else 1.0  # noqa: E731
    right = lambda q: draw() < (q if doubt else rate)  # noqa: E731
    trunk, branch_point, tokens, time = None, 0.0, 0, 0.0
    for _ in range(ROUNDS):
        if trunk is None:
            trunk, branch_point = [], place()
            while len(trunk) < gamma and branch_point >= threshold:
                trunk.append(branch_point)
                branch_point = place()
            time += min(len(trunk) + 1, gamma) / c
        siblings = max(1, floor(most * (1 - branch_point) + 1e-9))
        branch, following = [], place()
        while len(branch) < length - 1 and (not branch or following >= threshold):
            branch.append(following)
            following = place()
        time += max(1, min(len(branch) + 2, length) / c)
        wrong = next((i for i, q in enumerate(trunk) if not right(q)), None)
        won = right(branch_point) or draw() >= siblings**-misses
        tokens += len(trunk) + 1 if wrong is None else wrong + 1
        trunk, branch_point = (branch, following) if wrong is None and won else (None, 0.0)
    return tokens / time


@pytest.mark.parametrize(
    ("rate", "c", "config", "doubt"),
    [
        (0.8, 5, {"gamma": 2, "length": 5, "branches": 12, "threshold": 0.8}, 0.5),
        (0.6, 12, {"gamma": 6, "length": 6, "branches": 10, "threshold": 0.6}, 0.5),
        (0.9, 8, {"gamma": 7, "length": 8, "branches": 8, "threshold": 0.9}, 1.0),
        (0.7, 20, {"gamma": 3, "length": 10, "branches": 6, "threshold": 0.0}, 0.5),
        (0.5, 3, {"gamma": 2, "length": 1, "branches": 16, "threshold": 0.5}, 0.3),
        (0.7, 4, {"gamma": 3, "length": 4, "branches": 4, "threshold": 1.0}, 0.2),
        (0.7, 4, {"gamma": 3, "length": 2, "branches": 4, "threshold": 0.7}, 0.0),
        (0.3, 2, {"gamma": 1, "length": 1, "branches": 1, "threshold": 0.0}, 0.0),
        (0.8, 5, {"gamma": 4, "length": 10, "branches": 1, "threshold": 0.0}, 0.0),
        (1.0, 10, {"gamma": 6, "length": 6, "branches": 1, "threshold": 0.0}, 0.0),
    ],
)
def test_specbranch_with_forks_against_rounds_played_place_by_place(rate, c, config, doubt):
    played = forked_rounds(rate, c, config, doubt, 0.7)
    assert specbranch_speedup(rate, c=c, doubt=doubt, misses=0.7, **config) == pytest.approx(played, rel=0.02)
