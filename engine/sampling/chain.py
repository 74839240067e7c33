"""The acceptance rules for a chain, on the device: the next round starts from its verdict there.

The host applies `specscope.engine.sampling.accept.judge` to the same numbers, which makes the
decisions of the trace, and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from specscope.engine.errors import ModelError, SpecScopeError
from specscope.engine.sampling.draws import (
    NOT_FINITE,
    TOP,
    Draws,
    Key,
    Purpose,
    pick_rows,
    process_logits,
    softmax,
)
from specscope.engine.sampling.rows import PackedRows, RowFacts, RowTable, TokenDistribution
from specscope.engine.types import Judgement, Sampling

PURPOSES: tuple[Purpose, ...] = ("draft", "accept", "residual", "target")
"""The lines of a table of numbers: of each position one number for each purpose."""


def numbers(draws: Draws, positions: range) -> list[list[float]]:
    """Return the random numbers of a chain at these positions, a list for each of `PURPOSES`."""
    return [[draws.value(Key(at, purpose)) for at in positions] for purpose in PURPOSES]


class ChainVerdict(NamedTuple):
    """The verdict on a chain of G drafted tokens, on the device."""

    accepted: Tensor
    """How many tokens are accepted, () int64."""
    own: Tensor
    """The target's own token after them, () int64."""
    facts: Tensor
    """What `ChainRows` reads, (n,) float64."""


def judge_chain(
    logits: Tensor, drafted: Tensor, q: Tensor | None, us: Tensor, sampling: Sampling
) -> ChainVerdict:
    """Judge a chain without the host.

    Args:
        logits: The target's rows, (G + 1, V).
        drafted: The drafted tokens, (G,) int64.
        q: The rows that they were drawn from, (G, N) float32, N at most V; None for rule 2.
        us: Lines of `numbers` for the G + 1 positions that the rows decide, (4, G + 1) float64.
        sampling: The logits processors of p.
    """
    count, p = len(drafted), softmax(logits) if sampling.greedy else process_logits(logits, sampling)
    rows = torch.arange(count + 1, device=logits.device)
    own_rows = rows if q is None else rows[count:]
    target = None if sampling.greedy else us[3, own_rows]
    found = RowFacts.of(logits, p, rows[:count], drafted, own_rows, target)
    none = us.new_zeros(3)
    if q is None:
        fits = found.own[:count] == drafted
        accepted = fits.long().cumprod(0).sum()
        own, left = found.own.index_select(0, accepted[None])[0], none
    else:
        q = pad(q, (0, logits.shape[1] - q.shape[1]))
        ratio = found.p_drafted.double() / q[rows[:count], drafted].double()
        accepted = (us[1, :count] < ratio).long().cumprod(0).sum()
        token, left = _residual(p, q, us[2], accepted.clamp(max=count - 1))
        own = torch.where(accepted == count, found.own[0], token)
    verdict = torch.stack([accepted, own]).double()
    return ChainVerdict(accepted, own, torch.cat([found.flat(), left, verdict]))


def _residual(p: Tensor, q: Tensor, us: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Draw from what is left of p after the rejection in a row; also return (token, p, mass)."""
    at = row[None]
    full = p.index_select(0, at)[0].double()
    rest = (full - q.index_select(0, at)[0].double()).clamp_(min=0)
    total = rest.sum()
    weights = torch.where(total > 0, rest / total, full)
    token = pick_rows(us.index_select(0, at), weights[None])
    facts = torch.cat([token.double(), full.index_select(0, token), weights.sum()[None]])
    return token[0], facts


class ChainRows(PackedRows):
    """The rows of a chain that was judged on the device, on the host.

    Args:
        facts: `ChainVerdict.facts`, copied to the host.
        drafted: The drafted tokens.
        size: V.
        ratio: Whether the tokens were drawn from q: rule 1.
        sampled: Whether p is drawn from.

    Raises:
        ModelError: The logits are not finite.
    """

    def __init__(
        self, facts: Tensor, drafted: Sequence[int], size: int, *, ratio: bool, sampled: bool
    ) -> None:
        count = len(drafted)
        own_rows = range(count if ratio else 0, count + 1)
        found, rest = RowFacts.split(facts, count + 1, count, len(own_rows), min(TOP, size))
        pairs = [*enumerate(drafted)]
        super().__init__(RowTable(found, pairs, own_rows, size, sampled, facts.new_empty(0)), 0, count + 1)
        token, p_token, mass, accepted, own = rest.tolist()
        self.verdict = int(accepted), int(own)
        """The device's: the number of accepted tokens, and the target's own."""
        self._left = int(token), p_token, mass

    def distribution(self, row: int) -> TokenDistribution:
        return _Tested(self._table, row, self._left)

    def check(self, judgement: Judgement) -> None:
        """Raise SpecScopeError unless the host decided as the device did."""
        if (found := (len(judgement.accepted), judgement.own)) != self.verdict:
            raise SpecScopeError(
                f"the device's verdict {self.verdict} (accepted tokens, own token) is not the host's {found}"
            )


class _Tested(TokenDistribution):
    """p of a drafted token; after its rejection the draw that the device made."""

    def __init__(self, table: RowTable, row: int, left: tuple[int, float, float]) -> None:
        self._table, self._row, self._left = table, row, left

    def of(self, token: int) -> float:
        return self._table.probabilities[self._row, token]

    def residual(self, q: Tensor) -> TokenDistribution:  # noqa: ARG002 - drawn ahead
        return self

    def draw(self, draws: Draws, key: Key) -> int:  # noqa: ARG002 - drawn ahead, by this key
        token, p_token, mass = self._left
        if not 0 < mass < float("inf"):
            raise ModelError(NOT_FINITE)
        self._table.probabilities[self._row, token] = p_token
        return token
