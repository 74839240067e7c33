"""Speed-ups of speculative decoding, PEARL, its ablations and assisted generation, for a pair.

Table 7 prints the mean run n of accepted tokens between two rejections. If tokens are accepted
independently, n = a / (1 - a), so the acceptance rate a is n / (1 + n). A step costs what Table 15
prints besides forwards: 0.2 ms of communication and 1.7 ms of verification. For the Llama pairs the
paper prints no accepted tokens; their rate is fitted once to the row of speculative decoding.

At a rate that varies along a text, as in a recorded run: `assets/papers/pearl-acceptance.toml` has,
for each token of real runs, whether the draft was right. A rejection is kept with one probability
for all: the hard parts of a text stay harder than the easy ones, and the mean run of accepted
tokens becomes the paper's. Runs decide both methods' rounds.
"""

from __future__ import annotations

from functools import cache
from math import ceil
from typing import NamedTuple

import numpy as np

from specscope.engine.simulate.latency import Latency
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.simulate.roofline import PublishedModel
from specscope.traces.facts.closed_forms import bisect, pearl_tokens, speculative_tokens
from specscope.traces.papers.rows import numbers, row_of

_DATA = numbers("pearl")
_LONGEST = 64
_DRAWS = 50


class PublishedPair(NamedTuple):
    """Milliseconds of a pair, and its acceptance rate on HumanEval."""

    target: float
    drafter: float
    step: float
    rate: float

    @property
    def c(self) -> float:
        return self.target / self.drafter

    @property
    def window(self) -> int:
        """PEARL's draft length: round(c)."""
        return round(self.c)


def _profiles() -> list[Profile]:
    return [Profile.load(name) for name in profiles() if name.startswith("pearl-")]


def models() -> dict[str, PublishedModel]:
    return {name: model for profile in _profiles() for name, model in profile.models.items()}


@cache
def latency(pair: str) -> Latency:
    return next(profile.latency(pair) for profile in _profiles() if pair in profile.pairs)


@cache
def pair_of(name: str, speed_up: float | None = None) -> PublishedPair:
    """Return a pair with the rate of Table 7, or with the rate at which SD has a speed-up."""
    times = latency(name)
    assert times.drafter is not None
    step = (times.sample_us + times.communicate_us) / 1e3
    pair = PublishedPair(1e3 / times.target.speed, 1e3 / times.drafter.speed, step, 0.0)
    table = _DATA["Table 7"]
    if speed_up is None and name in table["columns"]:
        run = row_of(table, "Ours")[name]
        return pair._replace(rate=run / (1 + run))
    if speed_up is None:
        speed_up = float(row_of(_DATA["Table 1"], "Speculative Decoding")[name])
    return pair._replace(rate=bisect(lambda a: best_speculative(pair._replace(rate=a)), speed_up, 0, 1))


def speculative(pair: PublishedPair, gamma: int) -> float:
    return (
        speculative_tokens(pair.rate, gamma) * pair.target / (gamma * pair.drafter + pair.target + pair.step)
    )


def best_speculative(pair: PublishedPair) -> float:
    return max(speculative(pair, gamma) for gamma in range(1, 33))


def pearl(pair: PublishedPair, gamma: int = 0) -> float:
    """Return the speed-up of PEARL; gamma 0 is round(c)."""
    gamma = gamma or pair.window
    return pearl_tokens(pair.rate, gamma) * pair.target / together(pair, gamma)


def without_post_verify(pair: PublishedPair) -> float:
    """Return the speed-up without post-verify.

    A pre-verify step adds a token; with probability a the other gamma - 1 are verified alone.
    """
    gamma, rate = pair.window, pair.rate
    tokens = 1 + rate * speculative_tokens(rate, gamma - 1)
    return tokens * pair.target / (together(pair, gamma) + rate * (pair.target + pair.step))


def without_pre_verify(pair: PublishedPair) -> float:
    """Return the speed-up without pre-verify.

    A chunk is drafted alone after each rejection. Then each step verifies a chunk and drafts the
    next; with probability a^gamma another such step follows.
    """
    gamma, rate = pair.window, pair.rate
    steps = 1 / (1 - rate**gamma)
    tokens = steps * speculative_tokens(rate, gamma - 1)
    return tokens * pair.target / (steps * together(pair, gamma) + gamma * pair.drafter)


def assisted(pair: PublishedPair) -> float:
    """Return the speed-up of assisted generation: 2 drafts more when all are accepted, else 1 less.

    The draft length is a Markov chain; its stationary shares are found by repeated steps.
    """
    shares = [0.0] * (_LONGEST + 1)
    shares[5] = 1.0
    for _ in range(1000):
        after = [0.0] * (_LONGEST + 1)
        for length, share in enumerate(shares):
            if share:
                all_right = pair.rate**length
                after[min(_LONGEST, length + 2)] += share * all_right
                after[max(1, length - 1)] += share * (1 - all_right)
        shares = [(old + new) / 2 for old, new in zip(shares, after, strict=True)]
    tokens = sum(s * speculative_tokens(pair.rate, n) for n, s in enumerate(shares) if s)
    time = sum(s * (n * pair.drafter + pair.target + pair.step) for n, s in enumerate(shares) if s)
    return tokens * pair.target / time


def together(pair: PublishedPair, gamma: int) -> float:
    return max(gamma * pair.drafter, pair.target) + pair.step


def best_gamma(name: str) -> int:
    speeds = dict(zip(_DATA["Table 14"][name]["tokens/s"], _DATA["Table 14"][name]["columns"], strict=True))
    return speeds[max(speeds)]


def at_printed_gamma(pair: PublishedPair, name: str) -> float:
    """Return speculative decoding's speed-up at the best gamma, of Table 14 if it has the pair."""
    if name in _DATA["Table 14"]:
        return speculative(pair, best_gamma(name))
    return best_speculative(pair)


def pipeline(name: str) -> float:
    """Return the speed that PEARL keeps when its drafter shares the target's GPUs (appendix G)."""
    times, pair = latency(name), pair_of(name)
    move = times.move_us("drafter", ceil(pair.window / 2)) / 1e3
    return together(pair, pair.window) / (max(pair.window * pair.drafter + move, pair.target) + pair.step)


@cache
def _recorded() -> tuple[np.ndarray, np.ndarray]:
    """Return which tokens were rejected, (N,), and uniform numbers for each draw, (draws, N)."""
    wrong = np.array([flag == "0" for text in numbers("pearl-acceptance")["texts"] for flag in text])
    return wrong, np.random.default_rng(0).random((_DRAWS, len(wrong)))


def runs(kept: float) -> np.ndarray:
    """Return the accepted tokens before each rejection of the drawn texts, (R,).

    `kept` is the share of the recorded rejections that stay.
    """
    wrong, uniform = _recorded()
    return np.diff(np.flatnonzero((uniform < kept) & wrong), prepend=-1) - 1


def runs_of_mean(mean: float) -> np.ndarray:
    wrong, _ = _recorded()
    return runs(len(wrong) / (mean + 1) / wrong.sum())


@cache
def runs_of_speed(pair: PublishedPair, speed_up: float) -> np.ndarray:
    """Return the runs at which speculative decoding, at its best gamma, has a speed-up."""
    scarcity = bisect(
        lambda n: max(speculative_varying(pair, runs(1 / n), gamma) for gamma in range(1, 33)),
        speed_up,
        1,
        200,
    )
    return runs(1 / scarcity)


def speculative_varying(pair: PublishedPair, lengths: np.ndarray, gamma: int) -> float:
    """Return the speed-up of speculative decoding over texts with these runs.

    Whole rounds give gamma + 1 tokens of a run; one more ends with the rejection, or with a token
    of the target in its place.
    """
    tokens, rounds = (lengths + 1).sum(), (lengths // (gamma + 1) + 1).sum()
    return float(tokens / rounds) * pair.target / (gamma * pair.drafter + pair.target + pair.step)


def pearl_varying(pair: PublishedPair, lengths: np.ndarray) -> float:
    """Return the speed-up of PEARL over texts with these runs, at gamma = round(c).

    A run is a pre-verify step for its first token, then post-verify steps of gamma tokens, the
    rejection included.
    """
    steps = np.where(lengths > 0, 2 + (lengths - 1) // pair.window, 1)
    return float((lengths + 1).sum() / steps.sum()) * pair.target / together(pair, pair.window)


def most_varying(pair: PublishedPair, mean: float) -> float:
    """Return the most that PEARL reaches with this mean run, whatever the pattern of acceptance.

    A run of n tokens takes at least 1 + n / gamma steps.
    """
    return (mean + 1) / (1 + mean / pair.window) * pair.target / together(pair, pair.window)
