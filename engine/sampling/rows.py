"""The target's rows of one draft, as the acceptance rules read them.

`TargetRows` computes each number when it is asked for, which on a CPU costs nothing extra.
`PackedRows` are the rows of several sequences, read ahead: on a GPU every copy costs a wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specscope.engine.errors import ModelError
from specscope.engine.sampling.draws import (
    NOT_FINITE,
    TOP,
    Draws,
    Key,
    Top,
    argmax,
    most_probable,
    most_probable_of,
    pick_rows,
    process_logits,
    softmax,
)
from specscope.engine.types import Draft, Sampling, Typical


class TokenDistribution:
    """The target's distribution p of one position, or what rejections left of it, (V,)."""

    def __init__(self, p: Tensor) -> None:
        self._p = p

    def of(self, token: int) -> float:
        return float(self._p[token])

    def residual(self, q: Tensor) -> TokenDistribution:
        """Return norm(max(0, p - q)) in float64, p if that is zero everywhere; q is on the CPU."""
        p = self._p.cpu().double()
        rest = (p - q.cpu()).clamp_(min=0)
        total = float(rest.sum())
        return TokenDistribution(rest / total if total > 0 else p)

    def draw(self, draws: Draws, key: Key) -> int:
        return draws.choose(key, self._p)


class TargetRows:
    """Rows of logits, (R, V): row 0 follows the prefix, row i + 1 draft node i.

    `sampled` is whether tokens are drawn from p; otherwise they are the argmax. `size` is V.
    """

    def __init__(self, logits: Tensor, sampling: Sampling) -> None:
        self._logits = logits
        self.sampled, self.size = not sampling.greedy, logits.shape[1]
        self._p = process_logits(logits, sampling) if self.sampled else logits.new_empty((0, self.size))
        self._best = [] if self.sampled else argmax(logits)

    def __len__(self) -> int:
        return len(self._logits)

    def own(self, row: int, draws: Draws, key: Key) -> int:
        """Return the target's own token after a row: the argmax, or a draw from p."""
        return draws.choose(key, self._p[row]) if self.sampled else self._best[row]

    def distribution(self, row: int) -> TokenDistribution:
        return TokenDistribution(self._p[row])

    def bounds(self, rows: Sequence[int], typical: Typical) -> list[float]:
        """Return the probability that typical acceptance asks for in each row."""
        entropy = torch.special.entr(self._p[torch.tensor(rows, device=self._p.device)]).sum(-1)
        return (typical.delta * (-entropy).exp()).clamp(max=typical.epsilon).tolist()

    def probabilities(self, tokens: Sequence[tuple[int, int]]) -> list[float]:
        """Return p of drafted or decided tokens, given as (row, token)."""
        return _take(self._p, tokens)

    def described(
        self, rows: Sequence[int], tokens: Sequence[tuple[int, int]]
    ) -> tuple[list[float], tuple[Top, ...]]:
        """Return p of (row, token), and each row's most probable tokens.

        Without sampling, p is the plain softmax. Each token is a drafted one of its row, or was
        decided there.
        """
        is_chain = rows[-1] == len(rows) - 1  # a chain needs no copy of the rows
        chosen = slice(len(rows)) if is_chain else list(rows)
        p = self._p[chosen] if self.sampled else softmax(self._logits[chosen])
        index = {row: i for i, row in enumerate(rows)}
        tops = most_probable(p, TOP)
        return _take(p, [(index[row], token) for row, token in tokens]), tops


def check_rows(count: int, draft: Draft, bonus: bool) -> int:
    """Return how many rows a judgement of this draft may read; ValueError if there are fewer."""
    rows = len(draft) + 1 if bonus else max(draft.parents, default=-1) + 2
    if count < rows:
        raise ValueError(f"{count} rows of logits were given; judging this draft needs {rows}")
    return rows


def _take(p: Tensor, tokens: Sequence[tuple[int, int]]) -> list[float]:
    flat = [row * p.shape[1] + token for row, token in tokens]
    return p.take(torch.tensor(flat, device=p.device)).tolist()


class Case(NamedTuple):
    """One sequence's rows to judge."""

    logits: Tensor
    """(R, V): row 0 follows the prefix, row i + 1 draft node i; more rows may follow."""
    draft: Draft
    position: int
    """The position that row 0 decides."""
    draws: Draws
    bonus: bool = True
    typical: Typical | None = None


def read(cases: Sequence[Case], sampling: Sampling) -> list[PackedRows]:
    """Read the rows of all cases, with one copy to the host.

    ValueError if rows of a case are missing, ModelError if the logits are not finite.
    """
    for case in cases:
        check_rows(len(case.logits), case.draft, case.bonus)
    firsts = list(accumulate((len(case.logits) for case in cases), initial=0))[:-1]
    logits = cases[0].logits if len(cases) == 1 else torch.cat([case.logits for case in cases])
    drafted, numbers = list[tuple[int, int]](), dict[int, float]()
    for first, case in zip(firsts, cases, strict=True):
        drafted += [(first + t.parent + 1, t.id) for t in case.draft.tokens]
        numbers |= {} if sampling.greedy else {first + row: u for row, u in _own_numbers(case)}
    table = _table(logits, sampling, drafted, numbers)
    lines = (range(first, first + len(case.logits)) for first, case in zip(firsts, cases, strict=True))
    return [PackedRows(table, rows) for rows in lines]


def _own_numbers(case: Case) -> Iterator[tuple[int, float]]:
    """Yield each row after which the target may draw its own token, and the number for it."""
    positions, ratio = [case.position], set[int]()
    for t in case.draft.tokens:
        positions.append(positions[t.parent + 1] + 1)
        if t.q is not None and case.typical is None:
            ratio.add(t.parent + 1)  # rule 1 draws from what is left of p
    for row, position in enumerate(positions[: len(case.logits)]):
        if row not in ratio:
            yield row, case.draws.value(Key(position, "target"))


class RowFacts(NamedTuple):
    """The numbers of R rows, (R, V), that judging reads, as tensors on the rows' device."""

    best: Tensor
    """The column of each row's largest logit, (R,)."""
    entropy: Tensor
    """Of p, (R,)."""
    top: Tensor
    """The most probable tokens of each row, (R, k)."""
    top_p: Tensor
    p_drafted: Tensor
    """p of the D drafted tokens, (D,)."""
    own: Tensor
    """The target's own token after each row that may have one."""
    p_own: Tensor

    @classmethod
    def of(
        cls, logits: Tensor, p: Tensor, rows: Tensor, tokens: Tensor, own_rows: Tensor, us: Tensor | None
    ) -> RowFacts:
        """Compute them without the host.

        Args:
            logits: (R, V).
            p: The distributions, (R, V).
            rows: The row of each drafted token, (D,) int64.
            tokens: Its id.
            own_rows: Rows after which the target may draw, (W,) int64.
            us: The numbers of these draws, (W,) float64; None for the best tokens of all rows.
        """
        best, top = logits.argmax(-1), p.topk(min(TOP, p.shape[1]))
        own = best if us is None else pick_rows(us, p[own_rows])
        entropy = torch.special.entr(p).sum(-1)
        return cls(best, entropy, top.indices, top.values, p[rows, tokens], own, p[own_rows, own])

    def flat(self) -> Tensor:
        """Return all of them in one float64 tensor, (n,)."""
        return torch.cat([part.double().flatten() for part in self])

    @classmethod
    def split(cls, flat: Tensor, rows: int, drafted: int, own: int, k: int) -> tuple[RowFacts, Tensor]:
        """Return the facts that `flat` made, with these sizes, and the numbers that follow them."""
        sizes = (rows, rows, rows * k, rows * k, drafted, own, own)
        *parts, rest = flat.split([*sizes, len(flat) - sum(sizes)])
        parts[2], parts[3] = parts[2].view(rows, k), parts[3].view(rows, k)
        return cls(*parts), rest


class RowTable:
    """What judging reads of R rows, on the host.

    Args:
        facts: Of the rows, in the host's memory.
        drafted: (row, token) of the D drafted tokens.
        own_rows: Rows after which the target may draw its own token.
        size: V.
        sampled: Whether tokens are drawn from p; else p is the plain softmax.
        p: The distributions on their device, (R, V), for draws that are still to be made.

    Raises:
        ModelError: A probability is not a number.
    """

    def __init__(
        self,
        facts: RowFacts,
        drafted: Sequence[tuple[int, int]],
        own_rows: Sequence[int],
        size: int,
        sampled: bool,
        p: Tensor,
    ) -> None:
        self.sampled, self.size, self.p = sampled, size, p
        self.entropy = facts.entropy.numpy()
        self.tops = most_probable_of(facts.top.long(), facts.top_p)
        self.best: list[int] = facts.best.long().tolist()
        self.own = dict(zip(own_rows, facts.own.long().tolist(), strict=True))
        """Row -> the target's own token after it: the best one, or a draw from p."""
        known = [*facts.p_drafted.tolist(), *facts.p_own.tolist()]
        self.probabilities = dict(zip([*drafted, *self.own.items()], known, strict=True))
        """(row, token) -> p, for drafted tokens and the target's own."""


def _table(
    logits: Tensor, sampling: Sampling, drafted: Sequence[tuple[int, int]], numbers: dict[int, float]
) -> RowTable:
    """Read rows, (R, V), on their device; see `RowTable`.

    `numbers` maps a row to the number in [0, 1) of the target's own draw after it.
    """
    sampled, (count, size) = not sampling.greedy, logits.shape
    p = process_logits(logits, sampling) if sampled else softmax(logits)
    if not sampled:
        numbers = dict.fromkeys(range(count), 0.0)
    rows, tokens, own_rows, us = _uploaded(drafted, numbers, logits.device)
    flat = RowFacts.of(logits, p, rows, tokens, own_rows, us if sampled else None).flat().cpu()
    facts, _ = RowFacts.split(flat, count, len(drafted), len(numbers), min(TOP, size))
    return RowTable(facts, drafted, [*numbers], size, sampled, p)


class PackedRows(TargetRows):
    """The R rows of one sequence; `lines` are their numbers in a table."""

    def __init__(self, table: RowTable, lines: Sequence[int]) -> None:
        self._table, self._lines = table, lines
        self.sampled, self.size = table.sampled, table.size

    def __len__(self) -> int:
        return len(self._lines)

    def argmax(self) -> list[int]:
        """Return the best token of each row; ties go to the lowest id."""
        return [self._table.best[line] for line in self._lines]

    def own(self, row: int, draws: Draws, key: Key) -> int:  # noqa: ARG002 - drawn ahead, by this key
        return self._table.own[self._lines[row]]

    def distribution(self, row: int) -> TokenDistribution:
        return PackedDistribution(self._table, self._lines[row])

    def bounds(self, rows: Sequence[int], typical: Typical) -> list[float]:
        entropy = self._table.entropy[[self._lines[row] for row in rows]]
        return np.minimum(typical.delta * np.exp(-entropy), typical.epsilon).tolist()

    def probabilities(self, tokens: Sequence[tuple[int, int]]) -> list[float]:
        return [self._table.probabilities[self._lines[row], token] for row, token in tokens]

    def described(
        self, rows: Sequence[int], tokens: Sequence[tuple[int, int]]
    ) -> tuple[list[float], tuple[Top, ...]]:
        return self.probabilities(tokens), tuple(self._table.tops[self._lines[row]] for row in rows)


class PackedDistribution(TokenDistribution):
    """A row of a table on its device, to whose numbers p of a drawn token is added.

    `rest` is what rejections left of p, (V,) float64 with sum 1; None for p itself.
    """

    def __init__(self, table: RowTable, row: int, rest: Tensor | None = None) -> None:
        self._table, self._row, self._rest = table, row, rest

    def of(self, token: int) -> float:
        if self._rest is None:
            return self._table.probabilities[self._row, token]
        return float(self._rest[token])

    def residual(self, q: Tensor) -> TokenDistribution:
        p = self._table.p[self._row].double() if self._rest is None else self._rest
        rest = (p - upload(q, p.device)).clamp_(min=0)
        total = rest.sum()
        return PackedDistribution(self._table, self._row, torch.where(total > 0, rest / total, p))

    def draw(self, draws: Draws, key: Key) -> int:
        p = self._table.p[self._row]
        weights = p if self._rest is None else self._rest
        token = pick_rows(upload([draws.value(key)], p.device), weights[None])
        # one copy to the host
        found, p_token, mass = torch.cat([token.double(), p[token].double(), weights.sum()[None]]).tolist()
        if not 0 < mass < np.inf:
            raise ModelError(NOT_FINITE)
        self._table.probabilities[self._row, int(found)] = p_token
        return int(found)


def upload(numbers: Sequence[float] | Tensor, device: torch.device) -> Tensor:
    """Copy numbers to a device, as float64, without waiting for it."""
    here = torch.as_tensor(numbers, dtype=torch.float64)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here


def _uploaded(
    drafted: Sequence[tuple[int, int]], numbers: dict[int, float], device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Copy rows and tokens, (D,) int64, and rows and numbers of draws to a device, in one copy."""
    count, own = len(drafted), len(numbers)
    given = upload([*(r for r, _ in drafted), *(t for _, t in drafted), *numbers, *numbers.values()], device)
    rows, tokens, own_rows, us = given.split((count, count, own, own))
    return rows.long(), tokens.long(), own_rows.long(), us
