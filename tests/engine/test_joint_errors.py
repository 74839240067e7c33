"""The enumeration detects known errors: shared random numbers, drafts cut by their own draws."""

from __future__ import annotations

from collections import defaultdict

import pytest

from specscope.engine.drafting.schedule import Ask
from specscope.engine.drafting.tree import Wide
from specscope.engine.sampling.draws import Key
from specscope.engine.types import Draft, DraftToken, Sampling
from tests.engine.toy import Method, Table, ToyRun
from tests.engine.toy_draws import Enumerated
from tests.engine.toy_joint import distance, joint, target_joint
from tests.engine.toy_methods import method, sampled_tree, top_tree

EXACT = 1e-9
BIASED = 1e-3
ONE = Sampling(1.0)


def first_token(texts: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """Return the distribution of the first token."""
    marginal: dict[tuple[int, ...], float] = defaultdict(float)
    for text, probability in texts.items():
        marginal[text[:1]] += probability
    return marginal


def dropping(below: float) -> Method:
    """Return a method with a known error: it drops drawn tokens of low probability."""

    async def decode(run: ToyRun) -> None:
        while not run.done:
            draft = await run.drafter.propose(run.x, Ask(2, below))
            last = draft.tokens[-1]
            sure = last.q is not None and run.q_rows[last.q.row][last.id] >= below
            run.commit(await run.target.verify(run.x, draft if sure else draft[: len(draft) - 1]))

    return decode


def test_dropping_an_improbable_drawn_token_is_an_error_and_stopping_after_it_is_not():
    p, q = Table(41), Table(42)
    assert distance(joint(dropping(0.3), p, q, ONE, 2), target_joint(p, ONE, 2)) > BIASED
    sure = method("assisted", start=2, confidence=0.3)
    assert distance(joint(sure, p, q, ONE, 2), target_joint(p, ONE, 2)) < EXACT


def test_a_length_that_counts_discarded_tokens_is_an_error():
    """The discarded positions are drawn again with the same random numbers."""

    async def decode(run: ToyRun) -> None:
        n = 3
        while not run.done:
            draft = await run.drafter.propose(run.x, Ask(n, 0.3))
            run.commit(await run.target.verify(run.x, draft))
            n = 3 * (len(draft) == 3)  # of a draft that may have been rejected before its end

    p, q = Table(1, 3), Table(2, 3)
    assert distance(joint(decode, p, q, ONE), target_joint(p, ONE)) > BIASED


class AdjacentShare(Enumerated):
    """One number for two adjacent acceptance tests, as in PEARL's public code."""

    def number(self, key: Key) -> Key:
        return key._replace(position=key.position - key.position % 2) if key.purpose == "accept" else key


class ResidualShares(Enumerated):
    """One number for an acceptance test and the draw after it."""

    def number(self, key: Key) -> Key:
        return key._replace(purpose="accept") if key.purpose == "residual" else key


class SiblingsShare(Enumerated):
    """One number for the tests of all siblings."""

    def number(self, key: Key) -> Key:
        return key._replace(node=0) if key.purpose == "accept" else key


class SiblingsDrawnTogether(Enumerated):
    """One number for drawing all nodes of a level."""

    def number(self, key: Key) -> Key:
        return key._replace(node=0) if key.purpose == "draft" else key


class DraftDecides(Enumerated):
    """One number for drafting a token and testing it."""

    def number(self, key: Key) -> Key:
        return key._replace(purpose="draft") if key.purpose == "accept" else key


ERRORS = {
    "adjacent tests, speculative": (AdjacentShare, method("speculative", gamma=2), 3),
    "accept and residual": (ResidualShares, method("speculative", gamma=1), 1),
    "siblings": (SiblingsShare, sampled_tree(3), 1),
    "siblings of the method": (SiblingsShare, method("tree", width=3, depth=1), 1),
    "siblings drawn with one number": (SiblingsDrawnTogether, method("tree", width=3, depth=1), 1),
    "draft and accept": (DraftDecides, method("speculative", gamma=1), 1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_shared_random_numbers_bias_the_joint_distribution(name):
    draws, decode, tokens = ERRORS[name]
    p, q = Table(41), Table(42, banned=0 if tokens == 1 else 2)
    assert distance(joint(decode, p, q, ONE, tokens, draws), target_joint(p, ONE, tokens)) > BIASED
    assert distance(joint(decode, p, q, ONE, tokens), target_joint(p, ONE, tokens)) < EXACT


@pytest.mark.parametrize("draws", [AdjacentShare, ResidualShares, DraftDecides])
def test_a_vocabulary_of_three_tokens_shows_the_errors_of_chains(draws):
    decode, (p, q) = method("speculative", gamma=2), (Table(1, 3), Table(2, 3, banned=1))
    assert distance(joint(decode, p, q, ONE, 3, draws), target_joint(p, ONE, 3)) > BIASED


def test_a_number_shared_by_adjacent_tests_of_pearl_does_not_bias_the_first_token():
    p, q = Table(41), Table(42, banned=2)
    texts = joint(method("pearl", gamma=2), p, q, ONE, 3, AdjacentShare)
    assert distance(texts, target_joint(p, ONE)) > BIASED
    assert distance(first_token(texts), target_joint(p, ONE, 1)) < EXACT


def test_dropping_children_of_low_probability_biases_the_distribution():
    async def decode(run: ToyRun) -> None:
        while not run.done:
            draft = await run.drafter.grow(run.x, Wide(3, 1))
            kept = tuple(t for t in draft.tokens if run.q_rows[t.q.row][t.id] > 0.2)
            run.commit(await run.target.verify(run.x, Draft(kept)))

    p, q = Table(41), Table(42)
    assert distance(joint(decode, p, q, ONE, 1), target_joint(p, ONE, 1)) > BIASED


def test_the_ratio_rule_on_most_probable_children_biases_the_distribution():
    p, q = Table(52), Table(53)
    assert distance(joint(top_tree(2, as_sampled=True), p, q, ONE, 1), target_joint(p, ONE, 1)) > BIASED


def test_the_enumeration_visits_every_part_of_an_interval_once():
    seen = list[float]()

    async def decode(run: ToyRun) -> None:
        key = Key(2, "accept")
        inside = run.draws.below(key, 0.5) and not run.draws.below(key, 0.2)
        seen.append(run.draws.probability)
        run.x = run.x + Draft((DraftToken(int(inside)),))

    texts = joint(decode, Table(1), Table(2), ONE, 1)
    assert texts == {(0,): pytest.approx(0.7), (1,): pytest.approx(0.3)}
    assert sorted(seen) == pytest.approx([0.2, 0.3, 0.5])
