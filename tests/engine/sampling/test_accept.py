"""The acceptance rules 1 and 2, one judgement at a time."""

from __future__ import annotations

import math

import pytest
import torch

from specscope.engine.errors import ModelError
from specscope.engine.sampling.accept import judge
from specscope.engine.sampling.draws import Draws, facts
from specscope.engine.types import Draft, DraftToken, RowRef, Sampling
from tests.engine.toy import rows
from tests.engine.toy_draws import Fixed

ONE, GREEDY = Sampling(1.0), Sampling()
nan = float("nan")


def decide(logits, draft, q=(), draws=None, sampling=ONE, **more):
    table = [torch.tensor(row, dtype=torch.float64) for row in q]
    more |= {"position": 10, "sampling": sampling, "draws": draws or Fixed()}
    return judge(logits, draft, lambda t: table[t.q.row], **more)


def chain(*ids: int, q: bool = False) -> Draft:
    return Draft(tuple(DraftToken(t, i - 1, RowRef("s", i) if q else None, 0.25) for i, t in enumerate(ids)))


def outcomes(verdict) -> list[tuple]:
    return [(d.node, d.parent, d.position, d.token, d.rule, d.outcome) for d in verdict.judged]


# rule 1


P, Q = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]


def test_a_sampled_token_is_accepted_below_p_over_q():
    for u, accepted in [(0.24, True), (0.26, False)]:
        draws = Fixed(accept_10=u, residual_10=0.2, target_11=0.95)
        verdict = decide(rows(P, P), chain(0, q=True), [Q], draws)
        assert (len(verdict.accepted) == 1) == accepted
        own = [(-1, 0, 11, 3, "target", "bonus")] if accepted else [(-1, -1, 10, 2, "ratio", "corrected")]
        assert outcomes(verdict) == [(0, -1, 10, 0, "ratio", "accepted" if accepted else "rejected"), *own]
        tested, last = verdict.judged
        assert (tested.p, tested.q, tested.u) == (pytest.approx(0.1), 0.4, u)
        assert (last.p, last.u) == (pytest.approx(0.4 if accepted else 0.3), 0.95 if accepted else 0.2)
        assert math.isnan(last.q) if accepted else last.q == 0.2


def test_a_correction_is_drawn_from_the_residual():
    # max(0, p - q) is 0, 0, 0.1, 0.3
    for u, token in [(0.0, 2), (0.249, 2), (0.251, 3), (0.999, 3)]:
        draws = Fixed(accept_10=0.9, residual_10=u)
        assert decide(rows(P), chain(0, q=True), [Q], draws, bonus=False).own == token
    verdict = decide(rows(P), chain(3, q=True), [P], Fixed(accept_10=1.0, residual_10=0.05), bonus=False)
    assert (verdict.own, verdict.origin) == (0, "corrected"), "without a residual it is drawn from p"


def test_the_residual_is_carried_over_siblings():
    p, q = [0.1, 0.2, 0.3, 0.4], [0.5, 0.2, 0.2, 0.1]
    ref = RowRef("s", 0)
    draft = Draft(tuple(DraftToken(t, -1, ref) for t in (0, 2, 1)))
    draws = Fixed(accept_10=0.9, accept_10_1=0.8, accept_10_2=0.3, residual_10=0.5)
    verdict = decide(rows(p), draft, [q], draws, bonus=False)
    # after 0 is rejected: p = (0, 0, .25, .75), q = (0, .4, .4, .2)
    # after 2 is rejected: p = (0, 0, 0, 1), q = (0, 2/3, 0, 1/3), so p(1) = 0
    assert outcomes(verdict) == [
        (0, -1, 10, 0, "ratio", "rejected"),
        (1, -1, 10, 2, "ratio", "rejected"),
        (2, -1, 10, 1, "ratio", "rejected"),
        (-1, -1, 10, 3, "ratio", "corrected"),
    ]
    assert [(d.p, d.q) for d in verdict.judged] == [
        (pytest.approx(0.1), 0.5),
        (pytest.approx(0.25), pytest.approx(0.4)),
        (pytest.approx(0), pytest.approx(2 / 3)),
        (pytest.approx(0.4), 0.1),
    ]
    draws = Fixed(accept_10=0.9, accept_10_1=0.6)
    verdict = decide(rows(p), draft, [q], draws, bonus=False)
    assert verdict.accepted == (2,)
    assert outcomes(verdict)[-1] == (2, -1, 10, 1, "ratio", "discarded")


# rule 2, and temperature 0


def test_a_function_of_the_prefix_is_accepted_if_the_target_draws_it():
    draft = chain(1, 3)
    verdict = decide(rows(P, P, P), draft, draws=Fixed(target_10=0.2, target_11=0.05))
    assert outcomes(verdict) == [
        (0, -1, 10, 1, "match", "accepted"),
        (1, 0, 11, 3, "match", "rejected"),
        (-1, 0, 11, 0, "match", "corrected"),
    ]
    assert (verdict.accepted, verdict.own, verdict.origin, verdict.nodes) == ((1,), 0, "corrected", (0,))
    assert [(d.p, d.u) for d in verdict.judged] == [
        (pytest.approx(0.2), 0.2),
        (pytest.approx(0.4), 0.05),
        (pytest.approx(0.1), 0.05),
    ]
    assert [d.q for d in verdict.judged[:2]] == [0.25, 0.25]


def test_a_tree_is_descended_along_the_drawn_tokens():
    #        3 (0) - 1 (2), 2 (3)
    # prefix 0 (1) - 1 (4)
    draft = Draft(tuple(DraftToken(t, parent) for t, parent in [(3, -1), (0, -1), (1, 0), (2, 0), (1, 1)]))
    logits = rows(P, P, P, P, P, P)
    verdict = decide(logits, draft, draws=Fixed(target_10=0.7, target_11=0.5, target_12=0.99))
    assert (verdict.accepted, verdict.nodes, verdict.own, verdict.origin) == ((3, 2), (0, 3), 3, "bonus")
    assert outcomes(verdict) == [
        (1, -1, 10, 0, "match", "rejected"),
        (0, -1, 10, 3, "match", "accepted"),
        (2, 0, 11, 1, "match", "rejected"),
        (3, 0, 11, 2, "match", "accepted"),
        (-1, 3, 12, 3, "target", "bonus"),
        (4, 1, 11, 1, "match", "discarded"),
    ]
    last = verdict.judged[-1]
    assert math.isnan(last.p)
    assert math.isnan(last.u)
    assert last.top_p == ()


LEVELS = ([0.1, 0.2, 0.3, 0.4], [0.6, 0.2, 0.1, 0.1], [0.25] * 4)


@pytest.mark.parametrize(
    ("given", "draft", "draws", "sampling", "bonus", "accepted", "own", "origin"),
    [
        pytest.param([P], chain(), {"target_10": 0.5}, ONE, True, (), 2, "plain", id="empty"),
        pytest.param([P], chain(), {}, GREEDY, True, (), 3, "plain", id="empty, greedy"),
        pytest.param([P], chain(), {}, ONE, False, (), None, None, id="empty without bonus"),
        pytest.param([P, P], chain(3, 3), {"target_10": 0.9, "target_11": 0.9}, ONE, False, (3, 3), None, None, id="no bonus"),
        pytest.param([P, P], chain(3, 3), {}, GREEDY, False, (3, 3), None, None, id="no bonus, greedy"),
        pytest.param([P] * 4, chain(0), {"target_10": 0.05, "target_11": 0.5}, ONE, True, (0,), 2, "bonus", id="more rows"),
        *((LEVELS, chain(3, 0, q=q), {}, GREEDY, True, (3, 0), 0, "bonus") for q in (False, True)),
        *((LEVELS, chain(3, 1, q=q), {}, GREEDY, True, (3,), 0, "corrected") for q in (False, True)),
    ],
)  # fmt: skip
def test_the_ends_of_a_draft(given, draft, draws, sampling, bonus, accepted, own, origin):
    verdict = decide(rows(*given), draft, draws=Fixed(**draws), sampling=sampling, bonus=bonus)
    assert (verdict.accepted, verdict.own, verdict.origin) == (accepted, own, origin)
    assert verdict.emitted == (*accepted, *(() if own is None else (own,)))
    if origin == "plain":
        assert outcomes(verdict) == [(-1, -1, 10, own, "target", "plain")]
    if sampling is GREEDY:
        assert all(math.isnan(d.u) for d in verdict.judged)
    if (given, origin) == (LEVELS, "corrected"):
        assert [d.p for d in verdict.judged] == pytest.approx([0.4, 0.2, 0.6])
        assert [d.rule for d in verdict.judged] == ["match"] * 3


def test_at_temperature_0_p_is_unwarped():
    verdict = decide(rows([0.5, 0.3, 0.2]), Draft.empty(), sampling=Sampling(0.0, top_k=1, top_p=0.1))
    assert verdict.judged[0].p == pytest.approx(0.5)
    assert verdict.judged[0].top_p == tuple((i, pytest.approx(p)) for i, p in enumerate((0.5, 0.3, 0.2)))


def test_top_p_lists_the_most_probable_tokens_of_the_decided_row():
    p = [0.02, 0.3, 0.08, 0.25, 0.05, 0.2, 0.1]
    verdict = decide(rows(p, p), chain(1), sampling=GREEDY)
    for decision in verdict.judged:
        assert [t for t, _ in decision.top_p] == [1, 3, 5, 6, 2]
    verdict = decide(rows(p, p), chain(0), draws=Fixed(target_10=0.1), sampling=Sampling(1.0, top_k=2))
    assert verdict.judged[0].top_p == ((1, pytest.approx(0.3 / 0.55)), (3, pytest.approx(0.25 / 0.55)))
    assert verdict.judged[0].p == 0


# errors


@pytest.mark.parametrize(
    ("rows_of", "draft", "q", "bonus", "message"),
    [
        (3, Draft((DraftToken(0, -1, RowRef("s", 0)), DraftToken(1))), [Q], True, "siblings; draw all of them from one"),
        (3, Draft((DraftToken(1), DraftToken(1))), [], True, "the same token"),
        (3, Draft((DraftToken(1, 1), DraftToken(2))), [], True, "node 0 has parent 1"),
        (2, chain(0, 1), [], True, "needs 3"),
        (1, chain(0, 1), [], False, "needs 2"),
        (2, chain(1, q=True), [[0.5, 0.0, 0.5, 0.0]], True, "token 1 has q = 0"),
        (2, chain(1, q=True), [[0.2, 0.2, 0.6]], True, "of length 3; the target's rows have length 4"),
    ],
)  # fmt: skip
def test_drafts_and_rows_that_do_not_fit_are_refused(rows_of, draft, q, bonus, message):
    with pytest.raises(ValueError, match=message):
        decide(rows(*[P] * rows_of), draft, q, bonus=bonus)


@pytest.mark.parametrize("sampling", [ONE, GREEDY])
@pytest.mark.parametrize("bad", [nan, math.inf])
def test_logits_that_are_not_finite_are_refused(sampling, bad):
    logits = torch.tensor([[0.0, bad, 1.0]])
    with pytest.raises(ModelError, match="not finite"):
        decide(logits, Draft.empty(), draws=Draws(0, 0), sampling=sampling)
    with pytest.raises(ModelError, match="not finite"):
        facts(logits, [0], sampling, True)
