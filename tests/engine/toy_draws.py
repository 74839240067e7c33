"""Random numbers for tests: given ones, and ones that enumerate every outcome."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from math import prod

import numpy as np
import torch

from specscope.engine.sampling.draws import Draws, Key, argmax, process_logits
from specscope.engine.types import Damping, Sampling


def q_of(logits_row: torch.Tensor, sampling: Sampling, damping: Damping | None = None) -> torch.Tensor:
    """Return the distribution that a drafter draws from, (V,)."""
    q = process_logits(logits_row[None], sampling)[0]
    if damping is None:
        return q
    weights = q.clone()
    weights[q.argsort(descending=True)[: damping.tokens]] *= damping.factor
    return weights / weights.sum()


def propose_token(
    logits_row: torch.Tensor,
    *,
    position: int,
    sampling: Sampling,
    draws: Draws,
    sampled: bool,
    damping: Damping | None = None,
) -> tuple[int, torch.Tensor | None]:
    """Draft one token: from q (rule 1), which is returned, or the argmax (rule 2)."""
    if not sampled or sampling.greedy:
        return argmax(logits_row[None])[0], None
    q = q_of(logits_row, sampling, damping)
    return draws.choose(Key(position, "draft"), q), q


class Fixed(Draws):
    """Draws with given numbers, such as `accept_10=0.3`; any other key is an error."""

    def __init__(self, **numbers: float) -> None:
        super().__init__(0, 0)
        self._numbers = numbers

    def value(self, key: Key) -> float:
        return self._numbers[f"{key.purpose}_{key.position}" + (f"_{key.node}" if key.node else "")]


class Branches:
    """The choices of one execution, then of the next one, in depth-first order."""

    def __init__(self) -> None:
        self._script: list[int] = []
        self._widths: list[int] = []
        self._at = 0

    def take(self, width: int) -> int:
        if self._at == len(self._script):
            self._script.append(0)
            self._widths.append(width)
        assert self._widths[self._at] == width, "the execution is not a function of its draws"
        self._at += 1
        return self._script[self._at - 1]

    def advance(self) -> bool:
        """Move to the next execution; return whether there is one."""
        self._at = 0
        while self._script and self._script[-1] + 1 == self._widths[-1]:
            del self._script[-1], self._widths[-1]
        if self._script:
            self._script[-1] += 1
        return bool(self._script)


class Enumerated(Draws):
    """Draws that reach every outcome: each decision splits the interval of its key's number.

    A second decision with the same key splits the remaining interval, so correlations are exact.

    Args:
        branches: Chooses the part of each split.
        horizon: Numbers for this position and later are 1/2; no compared token depends on them.
    """

    def __init__(self, branches: Branches, horizon: int) -> None:
        super().__init__(0, 0)
        self._branches, self._horizon = branches, horizon
        self._intervals: dict[Key, tuple[float, float]] = {}

    @property
    def probability(self) -> float:
        return prod(high - low for low, high in self._intervals.values())

    def number(self, key: Key) -> Key:
        """Return the key whose number is used; known errors override this."""
        return key

    def value(self, key: Key) -> float:
        return float("nan")

    def below(self, key: Key, t: float) -> bool:
        return self._split(key, [0.0, min(t, 1.0), 1.0]) == 0

    def choose(self, key: Key, weights: torch.Tensor | np.ndarray) -> int:
        total = list(accumulate(weights.tolist()))
        return self._split(key, [0.0, *(mass / total[-1] for mass in total)])

    def _split(self, key: Key, edges: list[float]) -> int:
        if key.position >= self._horizon:
            return bisect_right(edges, 0.5) - 1
        key = self.number(key)
        low, high = self._intervals.get(key, (0.0, 1.0))
        parts = list[tuple[float, float, int]]()
        for i in range(len(edges) - 1):
            first, last = max(low, edges[i]), min(high, edges[i + 1])
            if last - first > 1e-14:  # the rest is rounding
                parts.append((first, last, i))
        low, high, index = parts[self._branches.take(len(parts)) if len(parts) > 1 else 0]
        self._intervals[key] = (low, high)
        return index
