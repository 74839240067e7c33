"""Rows that are read ahead decide as whole rows do, with one copy from their device."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from specscope.engine.errors import ModelError
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.draws import Draws, Key, process_logits, softmax
from specscope.engine.sampling.rows import Case, read
from specscope.engine.types import Draft, DraftToken, RowRef, Sampling, Typical
from tests.engine.toy_draws import Branches, Enumerated

SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.6, top_k=3), Sampling(1.3, top_p=0.8)]
SAMPLINGS += [Sampling(0.9, top_k=4, top_p=0.9), Sampling(1e-300)]
POSITION = 7


class Random:
    def __init__(self, seed: int, sampled: bool, size: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.size, tree = size or int(rng.choice((5, 6, 11, 29))), seed % 2
        parents = [[-1, 0, 1, 2], [-1, -1, -1, 0, 0, 3]][tree]
        self.q = torch.from_numpy(rng.dirichlet(np.full(self.size, 0.5), len(parents) + 1)).float()
        tokens = list[DraftToken]()
        for parent in parents:
            taken = {t.id for t in tokens if t.parent == parent}
            free = [i for i in range(self.size) if i not in taken and self.q[parent + 1, i] > 0]
            q = RowRef("drafter", parent + 1) if sampled else None
            tokens.append(DraftToken(int(rng.choice(free)), parent, q, 0.5))
        self.draft, scale = Draft(tuple(tokens)), float(rng.choice([0.5, 2.0]))
        logits = rng.normal(size=(len(parents) + 1, self.size)) * scale - 9
        if seed % 3 == 0:
            logits = np.round(logits)  # ties
        if seed % 5 == 0:
            logits[:, rng.integers(self.size)] = -np.inf
        self.logits, self.draws = torch.from_numpy(logits).float(), Draws(seed, 0)

    def q_row(self, token: DraftToken) -> torch.Tensor | None:
        return None if token.q is None else self.q[token.q.row]

    def judge(self, rows, sampling, typical=None):
        options = {"position": POSITION, "sampling": sampling, "draws": self.draws, "typical": typical}
        return judge(rows, self.draft, self.q_row, **options)

    def case(self, typical: Typical | None = None) -> Case:
        return Case(self.logits, self.draft, POSITION, self.draws, typical=typical)


def decisions(judgement) -> list[object]:
    judged = [(j.node, j.parent, j.position, j.token, j.rule, j.outcome, str(j.u)) for j in judgement.judged]
    return [judgement.accepted, judgement.own, judgement.origin, judged]


@pytest.mark.parametrize("rule", ["match", "ratio", "typical"])
def test_packed_rows_decide_as_whole_rows(rule):
    typical = Typical(0.3, 0.5) if rule == "typical" else None
    outcomes = set[str]()
    for sampling, seed in product(SAMPLINGS, range(7)):
        case = Random(seed, rule == "ratio")
        expected = case.judge(case.logits, sampling, typical)
        (rows,) = read([case.case(typical)], sampling)
        judgement = case.judge(rows, sampling, typical)
        assert decisions(judgement) == decisions(expected), (sampling, seed)
        assert rows.argmax() == case.logits.argmax(-1).tolist()
        for j, other in zip(judgement.judged, expected.judged, strict=True):
            np.testing.assert_allclose([j.p, j.q], [other.p, other.q], rtol=1e-4, atol=1e-7)
            assert [round(p, 5) for _, p in j.top_p] == pytest.approx([p for _, p in other.top_p], abs=1e-4)
            outcomes.add(j.outcome)
    assert outcomes >= {"accepted", "rejected", "corrected", "bonus"}


def test_sequences_are_read_together_and_judged_apart():
    cases = [Random(seed, seed % 4 < 2, size=11) for seed in range(6)]
    rows = read([case.case() for case in cases], Sampling(1.1))
    for case, row in zip(cases, rows, strict=True):
        assert decisions(case.judge(row, Sampling(1.1))) == decisions(case.judge(case.logits, Sampling(1.1)))


class Device(torch.Tensor):
    """A tensor that counts the copies to the host of itself and of all that is computed from it."""

    copies = 0
    is_cuda = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in READING and any(isinstance(a, cls) for a in args):
            Device.copies += 1
            with torch._C.DisableTorchFunctionSubclass():
                args = [a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args]
                return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


READING = {
    *("cpu", "tolist", "item", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__"),
    *("equal", "masked_select", "unique", "__array__", "__format__"),
}
"""Functions that wait for a device."""


def copies(case: Random, sampling: Sampling, typical: Typical | None = None) -> tuple[int, object]:
    Device.copies = 0
    rows = read([case.case(typical)._replace(logits=case.logits.as_subclass(Device))], sampling)
    judgement = case.judge(rows[0], sampling, typical)
    return Device.copies, judgement


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_round_waits_once_for_the_device_and_once_more_for_a_rejected_sample(sampling):
    outcomes = set[str]()
    for seed in range(0, 24, 2):  # chains
        assert copies(Random(seed, False), sampling)[0] == 1
        assert copies(Random(seed, False), sampling, Typical(0.3, 0.5))[0] == 1
        case = Random(seed, True)
        if seed % 4:  # the draft of a drafter that is the target
            case.q = softmax(case.logits) if sampling.greedy else process_logits(case.logits, sampling)
            ids = case.q.argmax(-1).tolist()
            case.draft = Draft(tuple(replace(t, id=ids[t.parent + 1]) for t in case.draft.tokens))
        count, judgement = copies(case, sampling)
        assert count == (2 if judgement.origin == "corrected" and not sampling.greedy else 1)
        outcomes.add(judgement.origin)
    assert outcomes == {"corrected", "bonus"}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=str)
def test_logits_that_are_missing_or_not_finite_are_an_error(sampling):
    chain = Draft((DraftToken(1), DraftToken(2, 0)))
    with pytest.raises(ValueError, match="1 rows of logits were given"):
        read([Case(torch.zeros(1, 4), chain, 0, Draws(0, 0))], sampling)
    for value in (math.nan, math.inf):
        logits = torch.zeros(2, 5)
        logits[1, 4] = value
        with pytest.raises(ModelError, match="not finite"):
            read([Case(logits, chain[:1], 0, Draws(0, 0))], sampling)


class Given(Draws):
    def __init__(self, u: float) -> None:
        super().__init__(0, 0)
        self._u = u

    def value(self, key: Key) -> float:
        return self._u


def test_a_draw_never_takes_a_token_of_probability_0():
    p = torch.tensor([[0.0, 0.3, 0, 0, 0.2, 0, 0.5, 0, 0], [0, 0, 0, 0, 1.0, 0, 0, 0, 0]])
    for u, expected in zip(
        [0.0, 0.29, 0.31, 0.49, 0.51, 0.75, 1 - 2**-53], [1, 1, 4, 4, 6, 6, 6], strict=True
    ):
        (rows,) = read([Case(p.log(), Draft((DraftToken(4),)), 0, Given(u))], Sampling(1.0))
        assert [rows.own(i, Given(u), Key(i, "target")) for i in range(2)] == [expected, 4]
        drawn = rows.distribution(0).residual(torch.zeros(9))
        assert drawn.draw(Given(u), Key(0, "residual")) == expected


class Cells(Enumerated):
    """Draws that reach every outcome; a draw from weights takes the middle of each of equal cells.

    That is exact for weights that are multiples of a cell.
    """

    def __init__(self, branches: Branches, counts: dict[str, int]) -> None:
        super().__init__(branches, 100)
        self._counts = counts
        self._numbers, self._chance = dict[Key, float](), 1.0

    @property
    def probability(self) -> float:
        return super().probability * self._chance

    def value(self, key: Key) -> float:
        if (count := self._counts.get(key.purpose)) is None:
            return math.nan
        if key not in self._numbers:
            self._numbers[key] = (self._branches.take(count) + 0.5) / count
            self._chance /= count
        return self._numbers[key]


P = torch.tensor([[1.0, 3, 2, 2], [2, 0, 4, 2], [3, 3, 1, 1], [0, 5, 2, 1], [4, 1, 1, 2]]).double() / 8
"""After the prefix, and after each token."""
Q = torch.tensor([2.0, 1, 1, 4]).double() / 8
"""All that rejections can leave of P[0] and Q has multiples of 1/24."""
DRAFTS = {
    "match": [(1.0, (1,))],
    "ratio": [(Q[x].item(), (x,)) for x in range(4)],
    "ratio, siblings": [((Q[x] * Q[y] / (1 - Q[x])).item(), (x, y)) for x in range(4) for y in range(4) if x != y],
}  # fmt: skip
"""Chance and tokens of each draft."""
CELLS = {
    "match": {"target": 8},
    "ratio": {"target": 8, "residual": 3},
    "ratio, siblings": {"target": 1, "residual": 12},
}
"""Cells by purpose; for one of the target, only the first token is compared."""


@pytest.mark.parametrize("rule", DRAFTS)
def test_the_joint_distribution_is_the_targets(rule):
    expected, texts, branches = P[0][:, None] * P[1:], np.zeros((4, 4)), Branches()
    q = None if rule == "match" else RowRef("drafter", 0)
    for chance, ids in DRAFTS[rule]:
        draft, more = Draft(tuple(DraftToken(i, -1, q) for i in ids)), True
        logits = torch.stack([P[0], *(P[1 + i] for i in ids)]).log()
        while more:
            draws = Cells(branches, CELLS[rule])
            rows = read([Case(logits, draft, 0, draws)], Sampling(1.0))
            options = {"position": 0, "sampling": Sampling(1.0), "draws": draws}
            first, *second = judge(rows[0], draft, lambda _: Q, **options).emitted
            after = np.eye(4)[second[0]] if second else P[1 + first].numpy()
            texts[first] += chance * draws.probability * after
            more = branches.advance()
    if CELLS[rule]["target"] == 1:
        texts = texts.sum(1)[:, None] * P[1:].numpy()
    np.testing.assert_allclose(texts, expected, atol=1e-12)
