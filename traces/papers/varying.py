"""PEARL and speculative decoding at a rate that varies along a text, as in a recorded run.

`assets/papers/pearl-acceptance.toml` has, for each token of real runs, whether the draft was right.
A rejection is kept with one probability for all: the hard parts of a text stay harder than the easy
ones, and the mean run of accepted tokens becomes the paper's. Runs decide both methods' rounds.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from traces.papers.pearl_speeds import Pair, together
from traces.papers.rows import bisect, numbers

_DRAWS = 50
"""Times that the recorded texts are drawn."""


@cache
def _recorded() -> tuple[np.ndarray, np.ndarray]:
    """Return which tokens were rejected, (N,), and uniform numbers for each draw, (draws, N)."""
    wrong = np.array([flag == "0" for text in numbers("pearl-acceptance")["texts"] for flag in text])
    return wrong, np.random.default_rng(0).random((_DRAWS, len(wrong)))


def runs(kept: float) -> np.ndarray:
    """Return the accepted tokens before each rejection of the drawn texts, (R,).

    Args:
        kept: The share of the recorded rejections that stay.
    """
    wrong, uniform = _recorded()
    return np.diff(np.flatnonzero((uniform < kept) & wrong), prepend=-1) - 1


def runs_of_mean(mean: float) -> np.ndarray:
    """Return runs with about this many accepted tokens on average."""
    wrong, _ = _recorded()
    return runs(len(wrong) / (mean + 1) / wrong.sum())


@cache
def runs_of_speed(pair: Pair, speed_up: float) -> np.ndarray:
    """Return the runs at which speculative decoding, at its best gamma, has a speed-up."""
    scarcity = bisect(
        lambda n: max(speculative(pair, runs(1 / n), gamma) for gamma in range(1, 33)), speed_up, 1, 200
    )
    return runs(1 / scarcity)


def speculative(pair: Pair, lengths: np.ndarray, gamma: int) -> float:
    """Return the speed-up of speculative decoding over texts with these runs.

    Whole rounds give gamma + 1 tokens of a run; one more ends with the rejection, or with a token
    of the target in its place.
    """
    tokens, rounds = (lengths + 1).sum(), (lengths // (gamma + 1) + 1).sum()
    return float(tokens / rounds) * pair.target / (gamma * pair.drafter + pair.target + pair.step)


def pearl(pair: Pair, lengths: np.ndarray) -> float:
    """Return the speed-up of PEARL over texts with these runs, at gamma = round(c).

    A run is a pre-verify step for its first token, then post-verify steps of gamma tokens, the
    rejection included.
    """
    steps = np.where(lengths > 0, 2 + (lengths - 1) // pair.window, 1)
    return float((lengths + 1).sum() / steps.sum()) * pair.target / together(pair, pair.window)


def most(pair: Pair, mean: float) -> float:
    """Return the most that PEARL reaches with this mean run, whatever the pattern of acceptance.

    A run of n tokens takes at least 1 + n / gamma steps.
    """
    return (mean + 1) / (1 + mean / pair.window) * pair.target / together(pair, pair.window)
