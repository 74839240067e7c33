"""Rows of logits on their device, and the few numbers of them that judging reads.

With ranks, each computes the numbers of its columns, and all get those of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.draws import NOT_FINITE, TOP, Top, warp
from engine.errors import ModelError
from engine.types import Sampling
from engine.vocabulary import Vocabulary, first_best, host, upload


class Table(NamedTuple):
    """The numbers of R rows, on the host."""

    best: list[int]
    """The best token of each row; ties go to the lowest id."""
    own: dict[int, int]
    """Row -> the target's own token after it: the best one, or a draw from p."""
    p: dict[tuple[int, int], float]
    """(row, token) -> p, for drafted tokens and the target's own."""
    top_ids: np.ndarray
    """Candidates for the most probable tokens of each row, (K, R)."""
    top_p: np.ndarray
    """Their probabilities, (K, R)."""
    entropy: np.ndarray
    """Of p of each row, (R,), in nats, if it was asked for."""
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

    def table(
        self, drafted: Sequence[tuple[int, int]], numbers: Mapping[int, float], *, entropy: bool = False
    ) -> Table:
        """Return the rows' numbers: one copy to the host, one exchange of ranks, two with draws.

        Args:
            drafted: (row, token) of the D drafted tokens.
            numbers: Row -> the number in [0, 1) of the draw after it; none at temperature 0.
            entropy: Whether to compute it.

        Raises:
            ModelError: The logits are not finite.
        """
        x, first, columns = self._x, self.vocabulary.first, self._x.shape[1]
        given = upload(
            [*(r for r, _ in drafted), *(i - first for _, i in drafted), *numbers, *numbers.values()],
            x.device,
        )
        lines, places = given[: 2 * len(drafted)].long().view(2, -1)
        held = (places >= 0) & (places < columns)
        largest, best = _best(x)
        weights = self._weights(x, largest) if self.sampled else None
        tops = x.topk(min(TOP, columns))
        own = [
            largest,
            _sums(x, best) if weights is None else weights.sum(-1, dtype=torch.float64),
            largest if weights is None or not entropy else torch.special.entr(weights).sum(-1),
            best + first,
            (tops.indices + first).T.flatten(),
            tops.values.T.flatten(),
            x[lines, places.clamp(0, columns - 1)].masked_fill(~held, -torch.inf),
        ]
        joined = self.vocabulary.join(torch.cat([part.double() for part in own]))
        read = [joined.flatten()]
        if weights is not None and numbers:
            rows, u = given[2 * len(drafted) :].view(2, -1)
            read.append(self._drawn(weights, joined[:, : 2 * len(x)], rows.long(), u).flatten())
        flat = host(torch.cat(read))
        ranks = flat[: joined.numel()].reshape(joined.shape)
        return self._read(ranks, drafted, list(numbers), flat[joined.numel() :].reshape(2, -1))

    def p(self, row: int, table: Table) -> Tensor:
        """Return p of a row, (C,) float64, on the device."""
        x = (self._x[row].double() - float(table.largest[row])) / self._temperature
        return x.exp() / float(table.total[row])

    def _weights(self, x: Tensor, largest: Tensor) -> Tensor:
        """Return exp((x - m) / T), with this rank's m; 0 for tokens that are not drawn."""
        shift = largest.masked_fill(largest == -torch.inf, 0)  # of a rank without such tokens
        return ((x - shift[:, None]) / self._temperature).exp()

    def _drawn(self, weights: Tensor, sums: Tensor, rows: Tensor, numbers: Tensor) -> Tensor:
        """Return the token drawn from each of D rows and its logit, (2, D) float64."""
        largest, totals = sums.view(len(sums), 2, -1)[:, :, rows].unbind(1)
        scales = ((largest - largest.amax(0)) / self._temperature).exp()
        cumulative = weights[rows].cumsum(-1, dtype=torch.float64)
        index = held_choice(
            cumulative, totals * scales, scales[self.vocabulary.rank], numbers, self.vocabulary
        )
        return self.chosen(index, self._x[rows])

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
        self, ranks: np.ndarray, drafted: Sequence[tuple[int, int]], drawn: Sequence[int], found: np.ndarray
    ) -> Table:
        """Return the table.

        Args:
            ranks: The numbers of all ranks, (N, L).
            drafted: (row, token) of the drafted tokens.
            drawn: The rows of the draws.
            found: Their tokens and logits, (2, D).
        """
        rows, end = len(self._x), ranks.shape[1] - len(drafted)
        largest, totals, entropies, ids = ranks[:, : 4 * rows].reshape(-1, 4, rows).swapaxes(0, 1)
        m = largest.max(0)
        if not np.isfinite(m).all():
            raise ModelError(NOT_FINITE)
        shift = (np.where(largest > -np.inf, largest, m) - m) / self._temperature
        scales = np.exp(shift)
        total = (totals * scales).sum(0)

        def probabilities(x: np.ndarray, row: Sequence[int] | slice) -> np.ndarray:
            return np.exp((x - m[row]) / self._temperature) / total[row]

        every, best = slice(None), first_best(largest, ids)
        own = dict(zip(drawn, found[0].astype(int).tolist(), strict=True)) if drawn else dict(enumerate(best))
        x_own = found[1] if drawn else m
        p = dict(
            zip(
                [*drafted, *own.items()],
                probabilities(
                    np.concatenate([ranks[:, end:].max(0), x_own]), [*(row for row, _ in drafted), *own]
                ).tolist(),
                strict=True,
            )
        )
        top_ids, top_x = ranks[:, 4 * rows : end].reshape(len(ranks), 2, -1, rows).swapaxes(0, 1)
        entropy = (scales * (entropies - totals * shift)).sum(0) / total + np.log(total)
        tops = (top_ids.reshape(-1, rows), probabilities(top_x.reshape(-1, rows), every))
        return Table(best, own, p, *tops, entropy, m, total)


def _best(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row and its column; ties go to the lowest one."""
    if x.is_cuda:
        return x.max(-1)
    # 8 rows of 24,576 on a CPU core: numpy 0.014 ms, torch 0.12
    return x.amax(-1), torch.from_numpy(x.numpy().argmax(-1))


def _sums(x: Tensor, best: Tensor) -> Tensor:
    """Return the sum of exp(x - m) of each row; 0 for a row of -inf."""
    # the best token has probability 1 / Z: one pass over the row instead of four
    p = x.softmax(-1).gather(-1, best[:, None])[:, 0].double()
    return p.reciprocal().nan_to_num(0)


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
