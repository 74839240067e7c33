"""A chain that is judged on the device has the host's verdict, bit by bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from specscope.engine.errors import ModelError, SpecScopeError
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.chain import PURPOSES, ChainRows, judge_chain, numbers
from specscope.engine.sampling.draws import Draws
from specscope.engine.types import Draft, DraftToken, RowRef, Sampling
from tests.engine.sampling.test_rows import POSITION, SAMPLINGS, Random, decisions

STEPS = (0.0, 0.2, 0.45, 0.7, 0.999)


class Given(Draws):
    """Numbers by position and purpose."""

    def __init__(self, table: list[list[float]]) -> None:
        self._table = table

    def value(self, key) -> float:
        return self._table[PURPOSES.index(key.purpose)][key.position - POSITION]


def both(logits, draft, q, draws, sampling):
    """Return the host's judgement of a chain, the device's, and the rows of the device."""
    ratio = q is not None and not sampling.greedy
    count, size = len(draft), logits.shape[1]
    us = torch.tensor(numbers(draws, range(POSITION, POSITION + count + 1)), dtype=torch.float64)
    drafted = torch.tensor(draft.ids, dtype=torch.int64)
    found = judge_chain(logits, drafted, q[:count] if ratio else None, us, sampling)
    rows = ChainRows(found.facts, draft.ids, size, ratio=ratio, sampled=not sampling.greedy)
    how = {"position": POSITION, "sampling": sampling, "draws": draws}
    on_host, on_device = (
        judge(part, draft, lambda t: None if t.q is None else q[t.q.row], **how) for part in (logits, rows)
    )
    assert (int(found.accepted), int(found.own)) == (len(on_host.accepted), on_host.own)
    return on_host, on_device, rows


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_a_chain_is_judged_as_on_the_host(rule):
    outcomes = set[str]()
    for sampling, seed in product(SAMPLINGS, range(0, 60, 2)):
        case = Random(seed, rule == "ratio")
        if rule == "match":
            case.draft = likely(case, 2 + seed // 2 % 3)
        q = case.q if rule == "ratio" else None
        on_host, on_device, rows = both(case.logits, case.draft, q, case.draws, sampling)
        assert decisions(on_device) == decisions(on_host), (sampling, seed)
        rows.check(on_device)
        for j, other in zip(on_device.judged, on_host.judged, strict=True):
            np.testing.assert_allclose([j.p, j.q], [other.p, other.q], rtol=1e-6, atol=1e-9)
            outcomes.add(j.outcome)
    assert outcomes >= {"accepted", "rejected", "corrected", "bonus", "discarded"}


def likely(case, count):
    """Return a draft whose first tokens are the target's best ones."""
    best = case.logits.argmax(-1).tolist()
    tokens = [DraftToken(best[i], i - 1, None, 0.5) for i in range(len(case.draft))]
    return Draft((*tokens[:count], *case.draft.tokens[count:]))


def test_all_numbers_give_the_host_s_decisions():
    """Two drafted tokens of three: every token, and numbers on both sides of every bound."""
    generator = torch.Generator().manual_seed(1)
    logits, outcomes = torch.randn((3, 3), generator=generator), set()
    q = torch.randn((2, 3), generator=generator).softmax(-1)
    for (a, b), values in product(product(range(3), range(3)), product(STEPS, repeat=4)):
        draft = Draft((DraftToken(a, -1, RowRef("d", 0)), DraftToken(b, 0, RowRef("d", 1))))
        first, second, residual, target = values
        table = [[0.0] * 3, [first, second, 0.0], [residual] * 3, [target] * 3]
        on_host, on_device, _ = both(logits, draft, q, Given(table), Sampling(0.8))
        assert decisions(on_device) == decisions(on_host)
        outcomes.add((len(on_host.accepted), on_host.own))
    assert {accepted for accepted, _ in outcomes} == {0, 1, 2}
    assert len(outcomes) == 7, "two corrections have no residual"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_without_a_draft_the_target_decides_alone(sampling):
    for seed in range(5):
        case = Random(seed, sampled=False)
        on_host, on_device, _ = both(case.logits[:1], Draft.empty(), None, case.draws, sampling)
        assert decisions(on_device) == decisions(on_host)
        assert on_device.origin == "plain"


def test_a_vocabulary_of_the_drafter_s_may_be_smaller():
    case = Random(4, sampled=True, size=11)
    small = case.q[:, :9] / case.q[:, :9].sum(-1, keepdim=True)
    tokens = [DraftToken(int(small[i].argmax()), i - 1, RowRef("d", i)) for i in range(4)]
    case.q = torch.nn.functional.pad(small, (0, 2))
    on_host, on_device, _ = both(case.logits, Draft(tuple(tokens)), case.q, case.draws, Sampling(1.0))
    assert decisions(on_device) == decisions(on_host)
    us = torch.tensor(numbers(case.draws, range(POSITION, POSITION + 5)), dtype=torch.float64)
    ids = torch.tensor([t.id for t in tokens])
    assert torch.equal(
        judge_chain(case.logits, ids, small[:4], us, Sampling(1.0)).facts,
        judge_chain(case.logits, ids, case.q[:4], us, Sampling(1.0)).facts,
    )


def test_logits_that_are_not_finite_and_another_verdict_are_errors():
    case = Random(2, sampled=False)
    logits = torch.full_like(case.logits, torch.nan)
    us = torch.zeros((4, 5), dtype=torch.float64)
    found = judge_chain(logits, torch.tensor(case.draft.ids), None, us, Sampling())
    with pytest.raises(ModelError, match="not finite"):
        ChainRows(found.facts, case.draft.ids, case.size, ratio=False, sampled=False)
    _, judgement, rows = both(case.logits, case.draft, None, case.draws, Sampling())
    rows.verdict = (len(judgement.accepted) + 1, judgement.own)
    with pytest.raises(SpecScopeError, match="is not the host's"):
        rows.check(judgement)
