"""A draft that is judged on the device has the host's verdict, bit by bit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from specscope.engine.errors import ModelError, SpecScopeError
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.draws import Draws
from specscope.engine.sampling.forms import DeviceTree, DraftForm
from specscope.engine.sampling.verdict import DeviceJudge, TreeRows
from specscope.engine.types import Draft, DraftToken, RowRef, Sampling
from tests.engine.sampling.test_rows import POSITION, SAMPLINGS, Random, decisions

STEPS = (0.0, 0.2, 0.45, 0.7, 0.999)


class Given(Draws):
    """Numbers by position, purpose and node."""

    def __init__(self, numbers: dict[tuple[int, str, int], float]) -> None:
        self._numbers = numbers

    def value(self, key) -> float:
        return self._numbers.get((key.position - POSITION, key.purpose, key.node), 0.0)


def tree_of(draft, places=None, nodes=None):
    """Return a draft as tensors; `places` are the parents of more places than its `nodes` fill."""
    parents = places or [t.parent + 1 for t in draft.tokens]
    nodes = [*range(len(draft))] if nodes is None else nodes
    depths, siblings = [0], list[int]()
    for number, parent in enumerate(parents):
        depths.append(depths[parent] + 1)
        siblings.append(parents[:number].count(parent))
    tokens = torch.zeros(len(parents), dtype=torch.int64)
    tokens[nodes] = torch.tensor(draft.ids, dtype=torch.int64)
    exists = torch.zeros_like(tokens, dtype=torch.bool)
    exists[nodes] = True
    tensors = (torch.tensor(numbers, dtype=torch.int64) for numbers in (parents, depths, siblings))
    inner = tuple(sorted({*parents}))
    most = max(map(parents.count, parents), default=0)
    form = DraftForm(len(parents), max(depths), len(parents), most, inner)
    return DeviceTree(tokens, exists, *tensors), form, nodes


def on_device(logits, draft, q, draws, sampling, places=None, nodes=None):
    """Judge a draft on the device; return its verdict and its rows on the host."""
    drawn = q is not None and not sampling.greedy
    tree, form, nodes = tree_of(draft, places, nodes)
    device = DeviceJudge(form, sampling, drawn, torch.device("cpu"))
    numbers = device.lines.numbers(draws, range(POSITION, POSITION + form.depth + 1))
    us = torch.tensor(numbers, dtype=torch.float64)[:, tree.depths]
    whole = torch.zeros((form.nodes + 1, logits.shape[1]))
    whole[[0, *(node + 1 for node in nodes)]] = logits
    rows_of_q = q[list(form.inner)] if drawn else None
    found = device.judge(whole, tree, tree.ancestors(form.depth), rows_of_q, us)
    given = (found.facts, form, nodes, draft, logits.shape[1])
    return found, TreeRows(*given, drawn=drawn, sampled=not sampling.greedy)


def both(logits, draft, q, draws, sampling, places=None, nodes=None):
    """Return the host's judgement of a draft, that of the device's rows, and these rows."""
    found, rows = on_device(logits, draft, q, draws, sampling, places, nodes)
    place = {i: node + 1 for i, node in enumerate(nodes or range(len(draft)))}

    def q_row(token):
        return None if token.q is None else q[token.q.row]

    how = {"position": POSITION, "sampling": sampling, "draws": draws}
    expected, judgement = (judge(part, draft, q_row, **how) for part in (logits, rows))
    path = [row for row in found.path.tolist() if row]
    assert (path, int(found.own)) == ([place[node] for node in expected.nodes], expected.own)
    return expected, judgement, rows


@pytest.mark.parametrize("rule", ["match", "ratio"])
def test_a_draft_is_judged_as_on_the_host(rule):
    """Chains and trees."""
    outcomes = set[str]()
    for sampling, seed in product(SAMPLINGS, range(60)):
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
    """Return a draft some of whose first tokens are the target's best ones."""
    best, tokens = case.logits.argmax(-1).tolist(), list[DraftToken]()
    for i, token in enumerate(case.draft.tokens):
        mine = best[token.parent + 1] if i < count else token.id
        taken = {t.id for t in tokens if t.parent == token.parent}
        free = [mine, *(x for x in range(case.size) if x not in taken)]
        tokens.append(DraftToken(next(x for x in free if x not in taken), token.parent, None, 0.5))
    return Draft(tuple(tokens))


@pytest.mark.parametrize("form", ["chain", "siblings"])
def test_all_numbers_give_the_host_s_decisions(form):
    """Two drafted tokens of three: every token, and numbers on both sides of every bound."""
    generator = torch.Generator().manual_seed(1)
    logits, outcomes = torch.randn((3, 3), generator=generator), set()
    q = torch.randn((2, 3), generator=generator).softmax(-1)
    for (a, b), values in product(product(range(3), range(3)), product(STEPS, repeat=4)):
        if form == "siblings" and a == b:
            continue
        second = DraftToken(b, 0, RowRef("d", 1)) if form == "chain" else DraftToken(b, -1, RowRef("d", 0))
        draft = Draft((DraftToken(a, -1, RowRef("d", 0)), second))
        test, other, residual, target = values
        numbers = {(0, "accept", 0): test}
        numbers[(1, "accept", 0) if form == "chain" else (0, "accept", 1)] = other
        numbers |= {(i, "residual", 0): residual for i in range(3)}
        numbers |= {(i, "target", 0): target for i in range(3)}
        expected, judgement, rows = both(logits, draft, q, Given(numbers), Sampling(0.8))
        assert decisions(judgement) == decisions(expected)
        rows.check(judgement)
        outcomes.add((expected.nodes, expected.own))
    lengths = {len(nodes) for nodes, _ in outcomes}
    assert lengths == ({0, 1, 2} if form == "chain" else {0, 1})
    assert {nodes for nodes, _ in outcomes} >= ({(0, 1)} if form == "chain" else {(0,), (1,)})


@pytest.mark.parametrize("drawn", [True, False])
def test_places_may_be_void(drawn):
    """q may have fewer tokens than a level has places: the host's draft lacks these nodes."""
    places = [0, 0, 0, 1, 1, 2, 2]
    nodes = [0, 1, 3, 4, 5]  # the third child of the prefix and one of the second's are not there
    for seed in range(80):
        case = Random(2 * seed, drawn, size=6)
        rng, parents = np.random.default_rng(seed), [-1, -1, 0, 0, 1]
        q = torch.from_numpy(rng.dirichlet(np.full(6, 0.7), 8)).float()
        tokens = list[DraftToken]()
        for parent in parents:
            taken = {t.id for t in tokens if t.parent == parent}
            place = 0 if parent < 0 else nodes[parent] + 1
            free = [x for x in range(6) if x not in taken]
            tokens.append(DraftToken(int(rng.choice(free)), parent, RowRef("d", place) if drawn else None))
        logits = torch.from_numpy(rng.normal(size=(6, 6))).float()
        for sampling in (Sampling(1.0), Sampling()):
            given = (logits, Draft(tuple(tokens)), q if drawn else None, case.draws, sampling, places, nodes)
            expected, judgement, rows = both(*given)
            assert decisions(judgement) == decisions(expected)
            rows.check(judgement)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
def test_without_a_draft_the_target_decides_alone(sampling):
    for seed in range(5):
        case = Random(seed, sampled=False)
        expected, judgement, _ = both(case.logits[:1], Draft.empty(), None, case.draws, sampling)
        assert decisions(judgement) == decisions(expected)
        assert judgement.origin == "plain"


def test_logits_that_are_not_finite_and_another_verdict_are_errors():
    case = Random(2, sampled=False)
    with pytest.raises(ModelError, match="not finite"):
        on_device(torch.full_like(case.logits, torch.nan), case.draft, None, case.draws, Sampling())
    _, judgement, rows = both(case.logits, case.draft, None, case.draws, Sampling())
    rows.verdict = ((*judgement.nodes, 1), judgement.own)
    with pytest.raises(SpecScopeError, match="is not the host's"):
        rows.check(judgement)
