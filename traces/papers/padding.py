"""Expected padding of a batch of samples that accept independently (EMS-SD, appendix B).

A sample accepts k + 1 tokens or more with probability p^k, at most `most`. So E[tokens] is the sum
of p^k over k < most, and E[largest of B] the sum of 1 - (1 - p^k)^B.
"""

from __future__ import annotations

from traces.papers.rows import bisect


def mean_accepted(accuracy: float, most: int) -> float:
    """Return the expected tokens of a sample in one step (equation 7)."""
    return sum(accuracy**k for k in range(most))


def largest_accepted(accuracy: float, batch: int, most: int) -> float:
    """Return the expected largest number of tokens in a batch (equations 8 and 11)."""
    return sum(1 - (1 - accuracy**k) ** batch for k in range(most))


def padding(accuracy: float, batch: int, most: int) -> float:
    """Return the expected padding tokens of a sample (equation 9)."""
    return largest_accepted(accuracy, batch, most) - mean_accepted(accuracy, most)


def padding_ratio(accuracy: float, batch: int, most: int) -> float:
    """Return the padding over the accepted tokens."""
    return padding(accuracy, batch, most) / mean_accepted(accuracy, most)


def padding_share(accuracy: float, batch: int, most: int) -> float:
    """Return the padding over the largest number of tokens (equation 10)."""
    return padding(accuracy, batch, most) / largest_accepted(accuracy, batch, most)


def accuracy_of(tokens: float, most: int) -> float:
    """Return the accuracy at which a sample accepts so many tokens on average."""
    return bisect(lambda p: mean_accepted(p, most), tokens, 0, 1)
