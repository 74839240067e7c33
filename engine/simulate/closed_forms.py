"""What speculative decoding and PEARL are worth when every drafted token is accepted independently with one rate.

Sources: Leviathan et al. 2023, equation 1 and theorem 3.8; PEARL (ICLR 2025), algorithm 2, from which its formula is
derived here (that paper gives none: it measures that gamma = round(c) is best).

Notation: a is the acceptance rate, c = T(target) / T(drafter). A round's time is in target forwards; a forward over
gamma + 1 rows is taken to cost as much as one over a single row, and judging and communicating nothing.

PEARL as a chain of two states. In pre-verify mode a round checks one token and commits one (drafted or corrected); with
probability a the next round is post-verify. There gamma tokens are checked (gamma - 1 pending ones and the next
chunk's first): all are committed, with probability a^gamma, and the mode stays; else the accepted ones and one
corrected, and the mode falls back. A post-verify round therefore commits 1 + a + ... + a^(gamma - 1) tokens on
average, and in the long run a share of a / (1 + a - a^gamma) of the rounds is post-verify.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.types import check_range


def speculative_tokens(rate: float, gamma: int) -> float:
    """Expected tokens of a round of speculative decoding: (1 - a^(gamma + 1)) / (1 - a).

    Raises:
        UsageError: The rate is not within 0 and 1, or gamma below 1.
    """
    _check(rate, gamma)
    return _powers(rate, gamma + 1)


def speculative_speedup(rate: float, gamma: int, c: float) -> float:
    """Expected speed-up over autoregressive decoding: a round takes gamma / c + 1 target forwards.

    Raises:
        UsageError: The rate is not within 0 and 1, gamma below 1, or c not above 0.
    """
    check_range("c", c, 0, exclusive=True)
    return speculative_tokens(rate, gamma) / (gamma / c + 1)


def pearl_tokens(rate: float, gamma: int) -> float:
    """Expected tokens of a round of PEARL, over both modes.

    Raises:
        UsageError: The rate is not within 0 and 1, or gamma below 1.
    """
    _check(rate, gamma)
    post = rate / (1 + rate - rate**gamma)
    return 1 - post + post * _powers(rate, gamma)


def pearl_speedup(rate: float, gamma: int, c: float) -> float:
    """Expected speed-up over autoregressive decoding: a round takes max(gamma / c, 1) target forwards.

    Raises:
        UsageError: The rate is not within 0 and 1, gamma below 1, or c not above 0.
    """
    check_range("c", c, 0, exclusive=True)
    return pearl_tokens(rate, gamma) / max(gamma / c, 1)


def best_gamma(speedup: Callable[[float, int, float], float], rate: float, c: float, limit: int = 32) -> int:
    """Return the smallest gamma up to `limit` with the greatest speed-up, such as `best_gamma(pearl_speedup, 0.8, 5)`."""
    return max(range(1, limit + 1), key=lambda gamma: speedup(rate, gamma, c))


def _powers(rate: float, n: int) -> float:
    """Return 1 + a + ... + a^(n - 1), without the division that fails at a = 1."""
    return sum(rate**k for k in range(n))


def _check(rate: float, gamma: int) -> None:
    check_range("acceptance rate", rate, 0, 1)
    check_range("gamma", gamma, 1)
