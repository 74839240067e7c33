"""The acceptance rules on the device: the next round starts from their verdict there.

The places of a draft's nodes are known before its tokens are; a chain is a tree with one child per
node. All nodes are tested at once, and those whose ancestors pass are accepted. The host applies
`specscope.engine.sampling.accept.judge` to the same numbers, which makes the decisions of the
trace, and compares.
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
    Top,
    pick_rows,
    process_logits,
    softmax,
)
from specscope.engine.sampling.places import Places
from specscope.engine.sampling.rows import PackedRows, RowFacts, RowTable, TokenDistribution
from specscope.engine.types import Judgement, Sampling


PURPOSES: tuple[Purpose, ...] = ("draft", "accept", "residual", "target")


class Lines(NamedTuple):
    """The lines of a table of random numbers, whose columns are positions."""

    drafts: int
    """Draws of drafted tokens at one position."""
    tests: int
    """Tests of siblings."""

    @classmethod
    def of(cls, places: Places, *, drawn: bool) -> Lines:
        """Return the lines for a draft: with those of rule 1 if its tokens are drawn from q."""
        return cls(max(map(len, places.levels), default=0), places.most_children) if drawn else cls(0, 0)

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
        places: The places of the n nodes.
        sampling: The logits processors of p.
        drawn: Whether the tokens are drawn from q: rule 1; never at temperature 0.
        device: The logits'.
    """

    def __init__(self, places: Places, sampling: Sampling, drawn: bool, device: torch.device) -> None:
        self.lines = Lines.of(places, drawn=drawn)
        self._sampling, self._drawn = sampling, drawn
        count, rows = len(places), range(len(places) + 1)
        tensor = _Tensors(device)
        self._parents = tensor(places.parents)
        self._ancestors = tensor(places.ancestors()[1:], torch.bool).view(count, count + 1)[:, 1:]
        own_level = [[depth == level for depth in places.depths[1:]] for level in range(1, places.depth + 1)]
        self._levels = tensor(own_level, torch.bool).view(places.depth, count)
        self._rows = tensor(rows)
        self._tested = tensor(places.inner)
        numbers = {row: i for i, row in enumerate(places.inner)}
        self._index = tensor([numbers.get(row, 0) for row in rows])
        self._leaves = tensor(_own_rows(places, drawn))
        self._is_leaf = tensor([row not in numbers for row in rows], torch.bool)
        most = places.most_children
        padded = [[*places.children[row], *[0] * most][:most] for row in places.inner]
        self._children = tensor(padded).view(len(places.inner), most)
        """Rows of the children of the rows that have some; 0 for none."""

    def judge(
        self, logits: Tensor, drafted: Tensor, exists: Tensor, q: Tensor | None, us: Tensor
    ) -> DeviceVerdict:
        """Judge a draft.

        Args:
            logits: The target's rows, (n + 1, V).
            drafted: The drafted tokens, (n,) int64.
            exists: Whether a node is there, (n,) bool: q may have fewer tokens than places.
            q: The rows that they were drawn from, one for each row with children, (P, V) float32.
            us: `Lines.numbers` of the positions that the rows decide, (lines, n + 1) float64.
        """
        sampling, own = self._sampling, None
        p = softmax(logits) if sampling.greedy else process_logits(logits, sampling)
        if not sampling.greedy:
            own = us[self.lines.target].index_select(0, self._leaves)
        found = RowFacts.of(logits, p, self._parents, drafted, self._leaves, own)
        if q is None:
            passes = exists & (found.own.index_select(0, self._parents) == drafted)
            path = self._path(passes)
            own_token, facts = found.own.index_select(0, path.amax(0, keepdim=True)), [us.new_zeros(3)]
        else:
            tests, taken, rest = self._tests(p, drafted, exists, q, us)
            at = self._index.index_select(0, self._parents)
            path = self._path(taken.index_select(0, at) == self._rows[1:])
            last = path.amax(0, keepdim=True)
            own_token, left = self._after(last, p, rest, us, found.own)
            facts = [tests.flatten(), left]
        verdict = torch.cat([path, own_token]).double()
        return DeviceVerdict(path, own_token[0], torch.cat([found.flat(), *facts, verdict]))

    def _path(self, passes: Tensor) -> Tensor:
        """Return the rows of the accepted path, of the nodes that pass if their parents do."""
        if not len(passes):
            return self._rows[:1]  # row 0
        accepted = (passes | ~self._ancestors).all(1)
        return torch.where(self._levels & accepted, self._rows[1:], 0).amax(1)

    def _tests(
        self, p: Tensor, drafted: Tensor, exists: Tensor, q: Tensor, us: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Test all siblings, one after the other (rule 1), as if their parents were accepted.

        Returns p of each token when it is tested, (children, P); the row of the accepted child, 0
        for none, (P,); and what is left of p after all rejections, (P, V).
        """
        rest, q = p.index_select(0, self._tested).double(), q.double()
        taken, tests = torch.zeros_like(self._tested), list[Tensor]()
        for sibling, rows in enumerate(self._children.unbind(1)):
            node = (rows - 1).clamp(min=0)
            valid = (rows > 0) & exists.index_select(0, node)
            token = drafted.index_select(0, node)[:, None]
            p_x, q_x = rest.gather(1, token)[:, 0], q.gather(1, token)[:, 0]
            u = us[self.lines.drafts + sibling].index_select(0, self._tested)
            taken = torch.where((taken == 0) & valid & (u < p_x / q_x), rows, taken)
            tests.append(p_x)
            left = (rest - q).clamp_(min=0)
            total = left.sum(-1, keepdim=True)
            rest = torch.where(valid[:, None] & (total > 0), left / total, rest)
            if sibling + 1 < self._children.shape[1]:
                q = q.scatter(1, token, 0)
                q = q / q.sum(-1, keepdim=True)
        return torch.stack(tests), taken, rest

    def _after(self, last: Tensor, p: Tensor, rest: Tensor, us: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the token after the last accepted row, (1,); also return (token, p, mass)."""
        weights = rest.index_select(0, self._index.index_select(0, last))
        token = pick_rows(us[self.lines.residual].index_select(0, last), weights)
        full = p.index_select(0, last)[0].double()
        facts = torch.cat([token.double(), full.index_select(0, token), weights.sum()[None]])
        own_rows = torch.zeros_like(self._rows).index_copy(0, self._leaves, own)
        is_leaf, drawn = self._is_leaf.index_select(0, last), own_rows.index_select(0, last)
        return torch.where(is_leaf, drawn, token), facts


class _Tensors:
    """Makes tensors on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, numbers: Sequence[object], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor([*numbers], dtype=dtype, device=self._device)


def _own_rows(places: Places, drawn: bool) -> list[int]:
    """Return the rows after which the target may draw: under rule 1 those without children."""
    rows = range(len(places) + 1)
    return [row for row in rows if not places.children[row]] if drawn else [*rows]


class TreeRows(PackedRows):
    """The rows of a draft that was judged on the device, on the host.

    Args:
        facts: `DeviceVerdict.facts`, copied to the host.
        places: The places of the draft's nodes.
        nodes: The places of those that are there, rising.
        drafted: Their tokens.
        size: V.
        drawn: Whether the tokens were drawn from q: rule 1.
        sampled: Whether p is drawn from.

    Raises:
        ModelError: The logits are not finite.
    """

    def __init__(
        self,
        facts: Tensor,
        places: Places,
        nodes: Sequence[int],
        drafted: Sequence[int],
        size: int,
        *,
        drawn: bool,
        sampled: bool,
    ) -> None:
        count, own_rows = len(places), _own_rows(places, drawn)
        found, rest = RowFacts.split(facts, count + 1, count, len(own_rows), min(TOP, size))
        self._rows = [0, *(node + 1 for node in nodes)]
        """The row of each row of the draft among all places."""
        tests = (places.most_children, len(places.inner)) if drawn else (0, 0)
        tested, left, verdict = rest.split([tests[0] * tests[1], 3, len(rest) - tests[0] * tests[1] - 3])
        found = found._replace(p_drafted=found.p_drafted[[*nodes]])
        pairs = [(places.parents[node], token) for node, token in zip(nodes, drafted, strict=True)]
        table = RowTable(found, pairs, own_rows, size, sampled, facts.new_empty(0))
        super().__init__(table, 0, len(self._rows))
        *path, own = verdict.long().tolist()
        known = {row: i for i, row in enumerate(self._rows)}
        self.verdict = tuple(known[row] - 1 for row in path if row), own
        """The device's: the accepted nodes, and the target's own token."""
        columns = tested.view(tests).unbind(1) if drawn else ()
        self._tested = dict(zip(places.inner, (column.tolist() for column in columns), strict=False))
        token, p_token, mass = left.tolist()
        self._left = int(token), p_token, mass

    def own(self, row: int, draws: Draws, key: Key) -> int:
        return super().own(self._rows[row], draws, key)

    def distribution(self, row: int) -> TokenDistribution:
        place = self._rows[row]
        return _Tested(self._table, place, self._tested[place], self._left)

    def probabilities(self, tokens: Sequence[tuple[int, int]]) -> list[float]:
        return super().probabilities([(self._rows[row], token) for row, token in tokens])

    def described(
        self, rows: Sequence[int], tokens: Sequence[tuple[int, int]]
    ) -> tuple[list[float], tuple[Top, ...]]:
        return self.probabilities(tokens), tuple(self._table.tops[self._rows[row]] for row in rows)

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
