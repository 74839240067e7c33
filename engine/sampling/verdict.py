"""The acceptance rules on the device: the next round starts from their verdict there.

All nodes of a draft are tested at once, and those whose ancestors pass are accepted. The host
applies `specscope.engine.sampling.accept.judge` to the same numbers, which makes the decisions of
the trace, and compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

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
from specscope.engine.sampling.forms import DeviceTree, DraftForm
from specscope.engine.sampling.rows import PackedRows, RowFacts, RowTable, TokenDistribution
from specscope.engine.types import Draft, Judgement, Sampling

PURPOSES: tuple[Purpose, ...] = ("draft", "accept", "residual", "target")


class NumberLines(NamedTuple):
    """The lines of a table of random numbers, whose columns are positions."""

    drafts: int
    """Draws of drafted tokens at one position."""
    tests: int
    """Tests of siblings."""

    @classmethod
    def of(cls, form: DraftForm, *, drawn: bool) -> NumberLines:
        """Return the lines for a draft: with those of rule 1 if its tokens are drawn from q."""
        return cls(form.most_nodes, form.most_children) if drawn else cls(0, 0)

    def __len__(self) -> int:
        return self.drafts + self.tests + 2

    @property
    def residual(self) -> int:
        return self.drafts + self.tests

    @property
    def target(self) -> int:
        return self.residual + 1

    def numbers(self, draws: Draws, positions: range) -> list[list[float]]:
        """Return the numbers of each line at these positions."""
        counts = zip(PURPOSES, (self.drafts, self.tests, 1, 1), strict=True)
        keys = [partial(Key, purpose=purpose, node=i) for purpose, count in counts for i in range(count)]
        return [[draws.value(key(at)) for at in positions] for key in keys]


class DeviceVerdict(NamedTuple):
    """The verdict on a draft of n nodes in D levels, on the device."""

    path: Tensor
    """The row of the accepted node of each level, 0 for none, (D,) int64."""
    own: Tensor
    """The target's own token after them, () int64."""
    facts: Tensor
    """What `TreeRows` reads, (m,) float64."""


class DeviceJudge:
    """Judges drafts of one form without the host.

    Args:
        form: The drafts' sizes: n nodes, D levels.
        sampling: The logits processors of p.
        drawn: Whether the tokens are drawn from q: rule 1; never at temperature 0.
        device: The logits'.
    """

    def __init__(self, form: DraftForm, sampling: Sampling, drawn: bool, device: torch.device) -> None:
        self.lines = NumberLines.of(form, drawn=drawn)
        self._form, self._sampling = form, sampling
        self._rows = torch.arange(form.nodes + 1, device=device)
        self._levels = torch.arange(1, form.depth + 1, device=device)[:, None]
        self._inner = torch.tensor(form.inner, dtype=torch.int64, device=device)
        numbers = {row: i for i, row in enumerate(form.inner)}
        index = [numbers.get(row, 0) for row in range(form.nodes + 1)]
        self._index = torch.tensor(index, device=device)
        """The number of each row among those that may have children."""

    def judge(
        self, logits: Tensor, tree: DeviceTree, seen: Tensor, q: Tensor | None, us: Tensor
    ) -> DeviceVerdict:
        """Judge a draft.

        Args:
            logits: The target's rows, (n + 1, V).
            tree: The draft.
            seen: `DeviceTree.ancestors`.
            q: The rows that the tokens were drawn from, one for each row that may have children,
                (P, V) float32; None: rule 2.
            us: `NumberLines.numbers` of the positions that the rows decide, (lines, n + 1) float64.
        """
        sampling = self._sampling
        p = softmax(logits) if sampling.greedy else process_logits(logits, sampling)
        own_us = None if sampling.greedy else us[self.lines.target]
        found = RowFacts.of(logits, p, tree.parents, tree.tokens, self._rows, own_us)
        if q is None:
            passes = found.own.index_select(0, tree.parents) == tree.tokens
            path = self._path(passes & tree.exists, tree, seen)
            own, facts = found.own.index_select(0, path.amax(0, keepdim=True)), [us.new_zeros(3)]
        else:
            tests, taken, rest = self._tests(p, tree, q, us)
            at = self._index.index_select(0, tree.parents)
            path = self._path(taken.index_select(0, at) == self._rows[1:], tree, seen)
            own, left = self._after(path.amax(0, keepdim=True), p, rest, us, found.own, tree)
            facts = [tests.flatten(), left]
        verdict = torch.cat([path, own]).double()
        return DeviceVerdict(path, own[0], torch.cat([found.flat(), *facts, verdict]))

    def _path(self, passes: Tensor, tree: DeviceTree, seen: Tensor) -> Tensor:
        """Return the rows of the accepted path, of the nodes that pass if their parents do."""
        if not len(passes):
            return self._rows[:1]  # row 0
        accepted = (passes | ~seen[1:, 1:]).all(1)
        return torch.where((self._levels == tree.depths[1:]) & accepted, self._rows[1:], 0).amax(1)

    def _children(self, tree: DeviceTree) -> Tensor:
        """Return the rows of the children of the rows that may have some, (P, C); 0 for none."""
        count, most = len(self._inner), self._form.most_children
        places = self._index.index_select(0, tree.parents) * most + tree.siblings
        places = torch.where(tree.exists, places, count * most)  # one more place, which is left out
        table = self._rows.new_zeros(count * most + 1).index_copy_(0, places, self._rows[1:])
        return table[:-1].view(count, most)

    def _tests(self, p: Tensor, tree: DeviceTree, q: Tensor, us: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Test all siblings, one after the other (rule 1), as if their parents were accepted.

        Returns p of each token when it is tested, (C, P); the row of the accepted child, 0 for
        none, (P,); and what is left of p after all rejections, (P, V).
        """
        rest, q = p.index_select(0, self._inner).double(), q.double()
        taken, tests = torch.zeros_like(self._inner), list[Tensor]()
        for sibling, rows in enumerate(self._children(tree).unbind(1)):
            there = rows > 0
            token = tree.tokens.index_select(0, (rows - 1).clamp(min=0))[:, None]
            p_x, q_x = rest.gather(1, token)[:, 0], q.gather(1, token)[:, 0]
            u = us[self.lines.drafts + sibling].index_select(0, self._inner)
            taken = torch.where((taken == 0) & there & (u < p_x / q_x), rows, taken)
            tests.append(p_x)
            left = (rest - q).clamp_(min=0)
            total = left.sum(-1, keepdim=True)
            rest = torch.where(there[:, None] & (total > 0), left / total, rest)
            if sibling + 1 < self._form.most_children:
                q = q.scatter(1, token, 0)
                q = q / q.sum(-1, keepdim=True)
        return torch.stack(tests), taken, rest

    def _after(
        self, last: Tensor, p: Tensor, rest: Tensor, us: Tensor, own: Tensor, tree: DeviceTree
    ) -> tuple[Tensor, Tensor]:
        """Draw the token after the last accepted row, (1,); also return (token, p, mass)."""
        weights = rest.index_select(0, self._index.index_select(0, last))
        token = pick_rows(us[self.lines.residual].index_select(0, last), weights)
        full = p.index_select(0, last)[0].double()
        facts = torch.cat([token.double(), full.index_select(0, token), weights.sum()[None]])
        tested = ((tree.parents == last) & tree.exists).any(0, keepdim=True)
        return torch.where(tested, token, own.index_select(0, last)), facts


class TreeRows(PackedRows):
    """The rows of a draft that was judged on the device, on the host.

    Args:
        facts: `DeviceVerdict.facts`, copied to the host.
        form: The draft's sizes.
        nodes: The numbers of its nodes that are there, rising.
        draft: These nodes.
        size: V.
        drawn: Whether the tokens were drawn from q: rule 1.
        sampled: Whether p is drawn from.

    Raises:
        ModelError: The logits are not finite.
    """

    def __init__(
        self,
        facts: Tensor,
        form: DraftForm,
        nodes: Sequence[int],
        draft: Draft,
        size: int,
        *,
        drawn: bool,
        sampled: bool,
    ) -> None:
        count, lines = form.nodes + 1, [0, *(node + 1 for node in nodes)]
        found, rest = RowFacts.split(facts, count, form.nodes, count, min(TOP, size))
        tests = (form.most_children, len(form.inner)) if drawn else (0, 0)
        tested, left, verdict = rest.split([tests[0] * tests[1], 3, len(rest) - tests[0] * tests[1] - 3])
        found = found._replace(p_drafted=found.p_drafted[[*nodes]])
        pairs = [(lines[token.parent + 1], token.id) for token in draft.tokens]
        table = RowTable(found, pairs, range(count), size, sampled, facts.new_empty(0))
        super().__init__(table, lines)
        *path, own = verdict.long().tolist()
        known = {row: i for i, row in enumerate(lines)}
        self.verdict = tuple(known[row] - 1 for row in path if row), own
        """The device's: the accepted nodes, and the target's own token."""
        columns = tested.view(tests).unbind(1) if drawn else ()
        self._tested = dict(zip(form.inner, (column.tolist() for column in columns), strict=False))
        token, p_token, mass = left.tolist()
        self._left = int(token), p_token, mass

    def distribution(self, row: int) -> TokenDistribution:
        line = self._lines[row]
        return _Tested(self._table, line, self._tested[line], self._left)

    def check(self, judgement: Judgement) -> None:
        """Raise SpecScopeError unless the host decided as the device did."""
        if (found := (judgement.nodes, judgement.own)) != self.verdict:
            raise SpecScopeError(
                f"the device's verdict {self.verdict} (accepted nodes, own token) is not the host's {found}"
            )


class _Tested(TokenDistribution):
    """p of a row's drafted tokens, one sibling after the other; then the draw of the device."""

    def __init__(
        self, table: RowTable, row: int, tested: Sequence[float], left: tuple[int, float, float]
    ) -> None:
        self._table, self._row, self._left = table, row, left
        self._p, *self._later = tested

    def of(self, token: int) -> float:  # noqa: ARG002 - that of the sibling that is tested
        return self._p

    def residual(self, q: Tensor) -> TokenDistribution:  # noqa: ARG002 - computed ahead
        return _Tested(self._table, self._row, self._later or [0.0], self._left)

    def draw(self, draws: Draws, key: Key) -> int:  # noqa: ARG002 - drawn ahead, by this key
        token, p_token, mass = self._left
        if not 0 < mass < float("inf"):
            raise ModelError(NOT_FINITE)
        self._table.probabilities[self._row, token] = p_token
        return token
