"""How far the tokens of a round may be from their estimate, by the counts of accepted drafts.

The rate of each place has the Beta distribution of its counts (Jeffreys' prior, so that a place
without a rejection is not certain). Mean and variance of the tokens of a round follow exactly. The
interval is that of a normal distribution with the variance of these means and of a run's rounds,
which are taken as independent. Places that no draft reached have either no accepted token or the
rate of the last place.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import prod, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.traces.facts.places import LevelRate

_SURE = NormalDist().inv_cdf(0.975)


@lru_cache(4096)
def _power(accepted: int, rejected: int, n: int) -> float:
    """Return the mean of the n-th power of a rate with these counts."""
    a, total = accepted + 0.5, accepted + rejected + 1.0
    return prod((a + i) / (total + i) for i in range(n))


class LengthSpread:
    """The tokens of rounds with drafts of up to `most` tokens.

    Args:
        levels: Counts of each place, in order.
        share: Share of the rounds that verify a draft.
        most: The longest draft.
    """

    def __init__(self, levels: Sequence[LevelRate], share: float, most: int) -> None:
        self._counts = [(one.accepted, one.reached - one.accepted) for one in levels]
        self._share = share
        reached = range(1, most + 1)
        self._means = [0.0, *accumulate(self._both(k, 0) for k in reached)]
        """[k]: mean accepted tokens of drafts of k."""
        self._products = [[0.0] * (most + 1)]
        """[k][l]: mean product of the accepted tokens of drafts of k and of l at the same rates."""
        for k in reached:
            row = [0.0, *accumulate(self._both(k, other) for other in reached)]
            self._products.append([a + b for a, b in zip(row, self._products[-1], strict=True)])

    def interval(self, length: int, tokens: float, rounds: float) -> tuple[float, float]:
        """Return the ends for the mean tokens of so many rounds; `tokens` is the estimate."""
        reached = min(length, len(self._counts))
        low, high = (
            self._tokens(k) + sign * self._deviation(k, rounds) for k, sign in ((reached, -1), (length, 1))
        )
        return max(1.0, min(tokens, low)), min(1 + self._share * length, max(tokens, high))

    def alike(self, length: int, best: int, factor: float, factor_best: float) -> bool:
        """Return whether the means of two lengths may be equal; the factors make speeds of them."""
        return any(
            self._may_be(min(length, most), min(best, most), factor, factor_best)
            for most in (len(self._counts), max(length, best))
        )

    def _may_be(self, length: int, best: int, factor: float, factor_best: float) -> bool:
        mine, theirs = self._tokens(length), self._tokens(best)
        variance = factor**2 * self._covariance(length, length) + factor_best**2 * self._covariance(
            best, best
        )
        variance -= 2 * factor * factor_best * self._covariance(length, best)
        return factor * mine + _SURE * sqrt(max(0.0, variance)) >= factor_best * theirs

    def _tokens(self, length: int) -> float:
        return 1 + self._share * self._means[length]

    def _deviation(self, length: int, rounds: float) -> float:
        """Return half of the interval of the mean tokens of so many rounds."""
        squares = sum((2 * k - 1) * self._both(k, 0) for k in range(1, length + 1))
        within = self._share * squares - self._share**2 * self._products[length][length]
        return _SURE * sqrt(max(0.0, self._covariance(length, length) + max(0.0, within) / max(1.0, rounds)))

    def _covariance(self, a: int, b: int) -> float:
        return self._share**2 * (self._products[a][b] - self._means[a] * self._means[b])

    def _both(self, a: int, b: int) -> float:
        """Return how often drafts are accepted up to place a and up to b, at the same rates."""
        last = len(self._counts) - 1
        inner = prod(_power(*counts, (i < a) + (i < b)) for i, counts in enumerate(self._counts[:last]))
        return inner * _power(*self._counts[last], max(0, a - last) + max(0, b - last))
