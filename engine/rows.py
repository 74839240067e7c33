"""The target's rows of one draft, as the acceptance rules read them.

`WholeRows` computes each number when it is asked for, which on a CPU costs nothing extra.
`engine.packed_rows` computes them ahead, for devices from which every copy costs a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.draws import TOP, Draws, Key, Top, argmax, most_probable, softmax, warp
from engine.types import Draft, Sampling, Typical


class Weights(Protocol):
    """The distribution of one token: p of a row, or what rejections left of it."""

    def of(self, token: int) -> float:
        """Return a token's probability."""
        ...

    def residual(self, q: Tensor) -> Weights:
        """Return norm(max(0, p - q)), p if that is zero everywhere; q is (V,) on the CPU."""
        ...

    def draw(self, draws: Draws, key: Key) -> int:
        """Draw a token with the number of a key."""
        ...


class TargetRows(Protocol):
    """Row 0 follows the prefix, row i + 1 follows draft node i."""

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn from p; otherwise they are the argmax."""
        ...

    @property
    def size(self) -> int:
        """V."""
        ...

    def __len__(self) -> int:
        """Return R."""
        ...

    def argmax(self) -> list[int]:
        """Return the best token of each row; ties go to the lowest id."""
        ...

    def own(self, row: int, draws: Draws, key: Key) -> int:
        """Return the target's own token after a row: the argmax, or a draw from p."""
        ...

    def weights(self, row: int) -> Weights:
        """Return p of a row."""
        ...

    def bounds(self, rows: Sequence[int], typical: Typical) -> list[float]:
        """Return the probability that typical acceptance asks for in each row."""
        ...

    def probabilities(self, tokens: Sequence[tuple[int, int]]) -> list[float]:
        """Return p of drafted or decided tokens, given as (row, token)."""
        ...

    def described(
        self, rows: Sequence[int], tokens: Sequence[tuple[int, int]]
    ) -> tuple[list[float], tuple[Top, ...]]:
        """Return p of (row, token), unwarped without sampling, and each row's most probable tokens.

        Each token is a drafted one of its row, or was decided there.
        """
        ...


def check_rows(count: int, draft: Draft, bonus: bool) -> int:
    """Return how many rows a judgement of this draft may read.

    Raises:
        ValueError: There are fewer.
    """
    rows = len(draft) + 1 if bonus else max(draft.parents, default=-1) + 2
    if count < rows:
        raise ValueError(f"{count} rows of logits were given; judging this draft needs {rows}")
    return rows


class WholeRows:
    """Whole rows of logits, (R, V), on one device; see `TargetRows`."""

    def __init__(self, logits: Tensor, sampling: Sampling) -> None:
        self._logits = logits
        self.sampled, self.size = not sampling.greedy, logits.shape[1]
        self._p = warp(logits, sampling) if self.sampled else logits.new_empty((0, self.size))
        self._best = [] if self.sampled else argmax(logits)

    def __len__(self) -> int:
        """Return R."""
        return len(self._logits)

    def argmax(self) -> list[int]:
        """Return the best token of each row."""
        return argmax(self._logits)

    def own(self, row: int, draws: Draws, key: Key) -> int:
        """Return the target's own token after a row."""
        return draws.choose(key, self._p[row]) if self.sampled else self._best[row]

    def weights(self, row: int) -> Weights:
        """Return p of a row."""
        return WholeWeights(self._p[row])

    def bounds(self, rows: Sequence[int], typical: Typical) -> list[float]:
        """Return the probability that typical acceptance asks for in each row."""
        entropy = torch.special.entr(self._p[torch.tensor(rows, device=self._p.device)]).sum(-1)
        return (typical.delta * (-entropy).exp()).clamp(max=typical.epsilon).tolist()

    def probabilities(self, tokens: Sequence[tuple[int, int]]) -> list[float]:
        """Return p of (row, token)."""
        return _take(self._p, tokens)

    def described(
        self, rows: Sequence[int], tokens: Sequence[tuple[int, int]]
    ) -> tuple[list[float], tuple[Top, ...]]:
        """Return p of (row, token), and each row's most probable tokens."""
        is_chain = rows[-1] == len(rows) - 1  # a chain needs no copy of the rows
        chosen = slice(len(rows)) if is_chain else list(rows)
        p = self._p[chosen] if self.sampled else softmax(self._logits[chosen])
        index = {row: i for i, row in enumerate(rows)}
        tops = most_probable(p, TOP)
        return _take(p, [(index[row], token) for row, token in tokens]), tops


class WholeWeights:
    """A row of weights, (V,); see `Weights`."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights

    def of(self, token: int) -> float:
        """Return a token's probability."""
        return float(self._weights[token])

    def residual(self, q: Tensor) -> Weights:
        """Return norm(max(0, p - q)) in float64 on the CPU; p if that is zero everywhere."""
        p = self._weights.cpu().double()
        rest = (p - q.cpu()).clamp_(min=0)
        total = float(rest.sum())
        return WholeWeights(rest / total if total > 0 else p)

    def draw(self, draws: Draws, key: Key) -> int:
        """Draw a token with the number of a key."""
        return draws.choose(key, self._weights)


def _take(p: Tensor, tokens: Sequence[tuple[int, int]]) -> list[float]:
    flat = [row * p.shape[1] + token for row, token in tokens]
    return p.take(torch.tensor(flat, device=p.device)).tolist()
