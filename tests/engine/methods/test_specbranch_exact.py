"""SpecBranch's joint distribution with one, two and three siblings, and the error it avoids."""

from __future__ import annotations

import pytest

from specscope.engine.drafting.tree import Branches
from specscope.engine.methods.specbranch import _below, _forked
from specscope.engine.types import Draft, Sampling
from tests.engine.toy import Table, ToyRun
from tests.engine.toy_joint import distance, joint, target_joint
from tests.engine.toy_methods import method

EXACT, BIASED = 1e-9, 1e-3
ONE = Sampling(1.0)


@pytest.mark.parametrize("sampling", [ONE, Sampling(0.7, top_p=0.95)], ids=str)
@pytest.mark.parametrize("drafts", ["sampled", "greedy"])
@pytest.mark.parametrize(("width", "most", "tokens"), [(1, 1, 3), (4, 2, 3), (6, 3, 2)])
def test_one_two_and_three_siblings_have_the_targets_distribution(width, most, tokens, drafts, sampling):
    decode = method("specbranch", gamma=1, length=2, threshold=0.5, branches=width, drafts=drafts)
    counts, winners = set[int](), set[int]()

    async def watched(run: ToyRun) -> None:
        await decode(run)
        for verdict in run.verdicts:
            depth = verdict.draft.depth - 1
            counts.add(len(verdict.draft) - depth)
            winners.update(node - depth for node in verdict.nodes[depth:])

    p, q = Table(101, 3), Table(102, 3, sharpness=0.5)
    assert distance(joint(watched, p, q, sampling, tokens), target_joint(p, sampling, tokens)) < EXACT
    assert max(counts) == most
    assert max(winners) == most - 1, "the last sibling wins, too"


async def cut_by_own_q(run: ToyRun) -> None:
    """Decode with a known error: a drawn token of low q is dropped, and siblings are drawn anew."""
    trunk, fork = Draft.empty(), Branches(4, 2, 0.0)
    while not run.done:
        scores = run.target.score(run.x, trunk)
        branches = await run.drafter.grow(run.x + trunk, fork)
        verdict = await scores.judge(_forked(trunk, branches), bonus=False)
        sibling = verdict.nodes[len(trunk) :]
        rest = _below(branches, sibling[0] - len(trunk)) if sibling else Draft.empty()
        low = (i for i, t in enumerate(rest.tokens) if t.q and run.q_rows[t.q.row][t.id] < 0.3)
        trunk = rest[: next(low, len(rest))]
        run.commit(verdict)


def test_a_threshold_on_a_drawn_tokens_own_q_is_an_error():
    p, q = Table(101, 3), Table(102, 3, sharpness=0.5)
    assert distance(joint(cut_by_own_q, p, q, ONE), target_joint(p, ONE)) > BIASED
