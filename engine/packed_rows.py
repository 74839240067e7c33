"""The target's rows as numbers on the host, computed ahead for all sequences and copied once.

For devices from which every copy costs a wait, and for rows whose columns are split over ranks.
p(x) = exp((x - m) / T) / Z, where m is the largest logit of the row and Z the sum of all
exponentials: on the host in float64, from numbers that all ranks have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.device_rows import DeviceRows, Table, held_choice
from engine.draws import NOT_FINITE, Draws, Key, Top
from engine.errors import ModelError
from engine.rows import Weights, check_rows
from engine.types import Draft, Sampling, Typical
from engine.vocabulary import Vocabulary, host, upload


class Case(NamedTuple):
    """One sequence's rows to judge."""

    logits: Tensor
    """(R, C): row 0 follows the prefix, row i + 1 draft node i; more rows may follow."""
    draft: Draft
    position: int
    """The position that row 0 decides."""
    draws: Draws
    bonus: bool = True
    typical: bool = False
    """Whether it is judged by typical acceptance."""


def read(cases: Sequence[Case], sampling: Sampling, vocabulary: Vocabulary) -> list[PackedRows]:
    """Read the rows of all cases, with one copy to the host.

    At temperature 0 ranks exchange numbers once. The draws cost one exchange more, top-k another
    one, and top-p one of whole rows.

    Raises:
        ValueError: Rows of a case are missing.
        ModelError: The logits are not finite.
    """
    for case in cases:
        check_rows(len(case.logits), case.draft, case.bonus)
    firsts = list(accumulate((len(case.logits) for case in cases), initial=0))[:-1]
    logits = cases[0].logits if len(cases) == 1 else torch.cat([case.logits for case in cases])
    device = DeviceRows(logits, sampling, vocabulary)
    drafted, numbers = list[tuple[int, int]](), dict[int, float]()
    for first, case in zip(firsts, cases, strict=True):
        drafted += [(first + t.parent + 1, t.id) for t in case.draft.tokens]
        numbers |= {first + row: u for row, u in _own_numbers(case)} if device.sampled else {}
    table = device.table(drafted, numbers, entropy=any(case.typical for case in cases))
    return [PackedRows(table, device, i, len(case.logits)) for i, case in zip(firsts, cases, strict=True)]


def _own_numbers(case: Case) -> Iterator[tuple[int, float]]:
    """Yield each row after which the target may draw its own token, and the number for it."""
    positions, ratio = [case.position], set[int]()
    for t in case.draft.tokens:
        positions.append(positions[t.parent + 1] + 1)
        if t.q is not None and not case.typical:
            ratio.add(t.parent + 1)  # rule 1 draws from what is left of p
    for row, position in enumerate(positions[: len(case.logits)]):
        if row not in ratio:
            yield row, case.draws.value(Key(position, "target"))


class PackedRows:
    """The rows of one sequence; see `engine.rows.TargetRows`.

    Args:
        table: The numbers of all sequences' rows.
        device: All rows, on their device.
        first: The sequence's first row among them.
        count: R.
    """

    def __init__(self, table: Table, device: DeviceRows, first: int, count: int) -> None:
        self._table, self._device, self._first, self._count = table, device, first, count
        self.sampled, self.size = device.sampled, device.vocabulary.size

    def __len__(self) -> int:
        """Return R."""
        return self._count

    def argmax(self) -> list[int]:
        """Return the best token of each row."""
        return self._table.best[self._first : self._first + self._count]

    def own(self, row: int, draws: Draws, key: Key) -> int:  # noqa: ARG002 - drawn ahead, by this key
        """Return the target's own token after a row."""
        return self._table.own[self._first + row]

    def weights(self, row: int) -> Weights:
        """Return p of a row."""
        return PackedWeights(self._device, self._table, self._first + row)

    def bounds(self, rows: Sequence[int], typical: Typical) -> list[float]:
        """Return the probability that typical acceptance asks for in each row."""
        entropy = self._table.entropy[[self._first + row for row in rows]]
        return np.minimum(typical.delta * np.exp(-entropy), typical.epsilon).tolist()

    def probabilities(self, tokens: Sequence[tuple[int, int]]) -> list[float]:
        """Return p of (row, token)."""
        return [self._table.p[self._first + row, token] for row, token in tokens]

    def described(
        self, rows: Sequence[int], tokens: Sequence[tuple[int, int]]
    ) -> tuple[list[float], tuple[Top, ...]]:
        """Return p of (row, token), and each row's most probable tokens."""
        return self.probabilities(tokens), tuple(self._table.top(self._first + row) for row in rows)


class PackedWeights:
    """The distribution of one token, on the device; see `engine.rows.Weights`.

    Args:
        device: The rows.
        table: Their numbers; p of a drawn token is added.
        row: The row.
        rest: What rejections left of p, (C,) float64 with sum 1 over all ranks; None for p itself.
    """

    def __init__(self, device: DeviceRows, table: Table, row: int, rest: Tensor | None = None) -> None:
        self._device, self._table, self._row, self._rest = device, table, row, rest

    def of(self, token: int) -> float:
        """Return a token's probability; that of a residual costs a copy."""
        if self._rest is None:
            return self._table.p[self._row, token]
        vocabulary = self._device.vocabulary
        column = token - vocabulary.first
        here = self._rest[column : column + 1] if 0 <= column < vocabulary.width else self._rest.new_zeros(1)
        return float(host(vocabulary.join(here).sum(0))[0])

    def residual(self, q: Tensor) -> Weights:
        """Return norm(max(0, p - q)); p if that is zero everywhere."""
        vocabulary, p = self._device.vocabulary, self._values()
        rest = (p - upload(vocabulary.part(q), p.device)).clamp_(min=0)
        total = vocabulary.join(rest.sum(-1, keepdim=True)).sum(0)
        rest = torch.where(total > 0, rest / total, p)
        return PackedWeights(self._device, self._table, self._row, rest)

    def draw(self, draws: Draws, key: Key) -> int:
        """Draw a token with the number of a key: one copy."""
        device, values = self._device, self._values()[None]
        cumulative = values.cumsum(-1)
        masses, number = device.vocabulary.join(cumulative[:, -1]), upload([draws.value(key)], values.device)
        index = held_choice(cumulative, masses, torch.ones_like(number), number, device.vocabulary)
        p = device.p(self._row, self._table)[None]
        token, p_token, mass = host(torch.cat([device.chosen(index, p)[:, 0], masses.sum(0)])).tolist()
        if not 0 < mass < np.inf:
            raise ModelError(NOT_FINITE)
        self._table.p[self._row, int(token)] = p_token
        return int(token)

    def _values(self) -> Tensor:
        return self._device.p(self._row, self._table) if self._rest is None else self._rest
