"""The enumeration detects known errors: shared random numbers, drafts cut by their own draws."""

from __future__ import annotations

from typing import Any

import pytest

from specscope.engine.drafting.schedule import Ask
from specscope.engine.sampling.draws import Key
from specscope.engine.types import Draft, DraftToken, Sampling
from tests.engine.toy import Table, ToyRun
from tests.engine.toy_draws import Enumerated
from tests.engine.toy_joint import distance, joint, target_joint
from tests.engine.toy_methods import method, sampled_tree, top_tree

EXACT = 1e-9
BIASED = 1e-3
ONE = Sampling(1.0)


def q_of(run: ToyRun, token: DraftToken) -> float:
    return float(run.q_rows[token.q.row][token.id]) if token.q else 1.0


async def dropping(run: ToyRun) -> None:
    """Drop a last drawn token of low probability; to stop after it is no error."""
    while not run.done:
        draft = await run.drafter.propose(run.x, Ask(2, 0.3))
        sure = q_of(run, draft.tokens[-1]) >= 0.3
        run.commit(await run.target.verify(run.x, draft if sure else draft[: len(draft) - 1]))


async def counting_discarded(run: ToyRun) -> None:
    """Let a length count discarded tokens, which are drawn again with the same numbers."""
    n = 3
    while not run.done:
        draft = await run.drafter.propose(run.x, Ask(n, 0.3))
        run.commit(await run.target.verify(run.x, draft))
        n = 3 * (len(draft) == 3)  # of a draft that may have been rejected before its end


def sharing(purpose: str, /, **shared: Any) -> type[Enumerated]:
    """Return draws in which the keys of a purpose have another key's number."""

    class Sharing(Enumerated):
        def number(self, key: Key) -> Key:
            if key.purpose != purpose:
                return key
            return key._replace(**{name: f(key) if callable(f) else f for name, f in shared.items()})

    return Sharing


SIBLINGS = sharing("accept", node=0)
ERRORS = {
    # as in PEARL's public code
    "adjacent tests": (
        sharing("accept", position=lambda key: key.position // 2 * 2),
        method("speculative", gamma=2),
        3,
    ),
    "accept and residual": (sharing("residual", purpose="accept"), method("speculative", gamma=1), 1),
    "siblings": (SIBLINGS, sampled_tree(3), 1),
    "siblings of the method": (SIBLINGS, method("tree", width=3, depth=1), 1),
    "siblings drawn with one number": (sharing("draft", node=0), method("tree", width=3, depth=1), 1),
    "draft and accept": (sharing("accept", purpose="draft"), method("speculative", gamma=1), 1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_shared_random_numbers_bias_the_joint_distribution(name):
    draws, decode, tokens = ERRORS[name]
    p, q = Table(41), Table(42, banned=0 if tokens == 1 else 2)
    assert distance(joint(decode, p, q, ONE, tokens, draws), target_joint(p, ONE, tokens)) > BIASED
    assert distance(joint(decode, p, q, ONE, tokens), target_joint(p, ONE, tokens)) < EXACT


WRONG = {
    "dropping": (dropping, Table(41), Table(42), 2),
    "counting discarded tokens": (counting_discarded, Table(1, 3), Table(2, 3), 3),
    "the ratio rule on most probable children": (top_tree(2, as_sampled=True), Table(52), Table(53), 1),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_method_is_found(name):
    decode, p, q, tokens = WRONG[name]
    assert distance(joint(decode, p, q, ONE, tokens), target_joint(p, ONE, tokens)) > BIASED


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
