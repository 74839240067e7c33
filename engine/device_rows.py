"""Rows of logits on their device, and the few numbers of them that judging reads.

With ranks, each computes the numbers of its columns, and all get those of all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.draws import TOP, Top, not_finite, warp
from engine.types import Sampling
from engine.vocabulary import Vocabulary, first_best, host, upload


class Table(NamedTuple):
    """The numbers of R rows, on the host."""

    best: list[int]
    """The best token of each row; ties go to the lowest id."""
    own: list[int]
    """The target's own token after each row: the best one, or a draw from p."""
    p: dict[tuple[int, int], float]
    """(row, token) -> p, for drafted tokens and the target's own."""
    top_ids: np.ndarray
    """Candidates for the most probable tokens of each row, (K, R)."""
    top_p: np.ndarray
    """Their probabilities, (K, R)."""
    entropy: np.ndarray
    """Of p of each row, (R,), in nats; 0 at temperature 0."""
    largest: np.ndarray
    """The largest logit m of each row, (R,)."""
    total: np.ndarray
    """The sum Z of exp((x - m) / T) of each row, (R,)."""

    def top(self, row: int) -> Top:
        """Return the most probable tokens of a row, without tokens of probability 0."""
        ids, p = self.top_ids[:, row], self.top_p[:, row]
        order = np.argsort(-p, kind="stable")[:TOP]
        return tuple((int(ids[i]), float(p[i])) for i in order if p[i])


class DeviceRows:
    """Rows of logits on their device.

    Args:
        logits: This rank's columns, (R, C).
        sampling: The warp of p.
        vocabulary: The columns.
    """

    def __init__(self, logits: Tensor, sampling: Sampling, vocabulary: Vocabulary) -> None:
        self.sampled, self.vocabulary = not sampling.greedy, vocabulary
        self._x, self._temperature = _kept(logits, sampling, vocabulary)

    def table(self, drafted: Sequence[tuple[int, int]], numbers: Sequence[float]) -> Table:
        """Return the rows' numbers: one copy to the host, one exchange of ranks, two with draws.

        Args:
            drafted: (row, token) of the D drafted tokens.
            numbers: The number in [0, 1) of the draw after each row; none at temperature 0.

        Raises:
            ModelError: The logits are not finite.
        """
        x, first, (rows, columns) = self._x, self.vocabulary.first, self._x.shape
        given = upload([*(r for r, _ in drafted), *(i - first for _, i in drafted), *numbers], x.device)
        lines, places = given[: 2 * len(drafted)].long().view(2, -1)
        held = (places >= 0) & (places < columns)
        largest, best = x.max(-1)
        weights = ((x - _finite(largest)[:, None]) / self._temperature).exp()
        tops = x.topk(min(TOP, columns))
        cumulative = weights.cumsum(-1, dtype=torch.float64) if self.sampled else None
        own = [
            largest,
            weights.sum(-1, dtype=torch.float64) if cumulative is None else cumulative[:, -1],
            torch.special.entr(weights).sum(-1) if self.sampled else largest,
            best + first,
            (tops.indices + first).T.flatten(),
            tops.values.T.flatten(),
            x[lines, places.clamp(0, columns - 1)].masked_fill(~held, -torch.inf),
        ]
        joined = self.vocabulary.join(torch.cat([part.double() for part in own]))
        read = [joined.flatten()]
        if cumulative is not None:
            read.append(self._drawn(cumulative, joined[:, : 2 * rows], given[2 * len(drafted) :]).flatten())
        flat = host(torch.cat(read))
        ranks = flat[: joined.numel()].reshape(joined.shape)
        return self._read(rows, ranks, drafted, flat[joined.numel() :].reshape(-1, rows))

    def p(self, row: int, table: Table) -> Tensor:
        """Return p of a row, (C,) float64, on the device."""
        x = (self._x[row].double() - float(table.largest[row])) / self._temperature
        return x.exp() / float(table.total[row])

    def _drawn(self, cumulative: Tensor, sums: Tensor, numbers: Tensor) -> Tensor:
        """Return each row's drawn token and its logit, (2, R) float64."""
        largest, totals = sums.view(len(sums), 2, -1).unbind(1)
        scales = ((largest - largest.amax(0)) / self._temperature).exp()
        index = held_choice(
            cumulative, totals * scales, scales[self.vocabulary.rank], numbers, self.vocabulary
        )
        return self.chosen(index, self._x)

    def chosen(self, index: Tensor, values: Tensor) -> Tensor:
        """Return each row's chosen token and its value, (2, R) float64, from the rank that has it.

        Args:
            index: The chosen column of each row, (R,); -1 on the other ranks.
            values: (R, C).
        """
        value = values.gather(-1, index.clamp(min=0)[:, None])[:, 0]
        found = torch.stack([index + self.vocabulary.first, value]).double()
        return self.vocabulary.join(found.masked_fill(index < 0, -torch.inf)).amax(0)

    def _read(
        self, rows: int, ranks: np.ndarray, drafted: Sequence[tuple[int, int]], drawn: np.ndarray
    ) -> Table:
        """Return the table, from the numbers of all ranks, (N, L)."""
        largest, totals, entropies, ids = ranks[:, : 4 * rows].reshape(len(ranks), 4, rows).swapaxes(0, 1)
        tops, tokens = (
            ranks[:, 4 * rows : ranks.shape[1] - len(drafted)],
            ranks[:, ranks.shape[1] - len(drafted) :],
        )
        m = largest.max(0)
        if not np.isfinite(m).all():
            raise not_finite()
        shift = (np.where(largest > -np.inf, largest, m) - m) / self._temperature
        scales = np.exp(shift)
        total = (totals * scales).sum(0)

        def probabilities(x: np.ndarray, row: list[int] | slice) -> np.ndarray:
            return np.exp((x - m[row]) / self._temperature) / total[row]

        best = first_best(largest, ids)
        own, x_own = (drawn[0].astype(int).tolist(), drawn[1]) if len(drawn) else (best, m)
        every, lines = slice(None), [row for row, _ in drafted]
        p = dict(zip(drafted, probabilities(tokens.max(0), lines).tolist(), strict=True))
        p |= dict(zip(enumerate(own), probabilities(x_own, every).tolist(), strict=True))
        top_ids, top_x = tops.reshape(len(ranks), 2, -1, rows).swapaxes(0, 1).reshape(2, -1, rows)
        entropy = (scales * (entropies - totals * shift)).sum(0) / total + np.log(total)
        return Table(best, own, p, top_ids, probabilities(top_x, every), entropy, m, total)


def held_choice(
    cumulative: Tensor, masses: Tensor, scales: Tensor, numbers: Tensor, vocabulary: Vocabulary
) -> Tensor:
    """Return the first column whose cumulative mass exceeds u times the total; see `draws.pick`.

    Args:
        cumulative: Cumulative weights of this rank's columns, (R, C) float64.
        masses: Mass of all columns of each rank, (N, R) float64.
        scales: What this rank's weights are multiplied by to give masses, (R,).
        numbers: u of each row, (R,).
        vocabulary: The columns.

    Returns:
        (R,); -1 where another rank holds the column.
    """
    ends = masses.cumsum(0)
    at = numbers * ends[-1]
    # u times the total may round up to the total: then the last column of positive weight is meant
    holder = torch.minimum((ends <= at).sum(0), (ends < ends[-1]).sum(0))
    begin = ends[vocabulary.rank - 1] if vocabulary.rank else torch.zeros_like(at)
    rest = ((at - begin) / scales).clamp(min=0)[:, None]
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    index = torch.minimum(torch.searchsorted(cumulative, rest, right=True), last)[:, 0]
    index = index.clamp(max=cumulative.shape[1] - 1)  # of numbers that are not finite
    return index.masked_fill(holder != vocabulary.rank, -1)


def _finite(largest: Tensor) -> Tensor:
    """Return the largest logits, with 0 where a rank has no token that may be drawn."""
    return largest.masked_fill(largest == -torch.inf, 0)


def _kept(logits: Tensor, sampling: Sampling, vocabulary: Vocabulary) -> tuple[Tensor, float]:
    """Return logits with -inf for tokens that top-k and top-p drop, and the temperature.

    At temperature 0 these are the logits and 1: p is then the unwarped softmax.
    """
    x = logits if logits.dtype == torch.float64 else logits.float()
    if sampling.greedy:
        return x, 1.0
    if sampling.top_p < 1:
        # which tokens belong to the most probable ones depends on the whole, sorted row
        return vocabulary.part(warp(vocabulary.gather(x), sampling)).double().log(), 1.0
    if 0 < sampling.top_k < vocabulary.size:
        least = vocabulary.largest(x, sampling.top_k).amin(-1, keepdim=True)
        x = x.masked_fill(x < least, -torch.inf)
    return x, max(sampling.temperature, torch.finfo(x.dtype).tiny)
