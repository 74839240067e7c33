"""A worker's branches are the chains that it drafts after each guess alone."""

from __future__ import annotations

from functools import partial
from itertools import count

import numpy as np
import pytest

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.layout import Packing
from specscope.engine.model.language import never
from specscope.engine.types import Damping, Prefix, Sampling
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Fan, Load, Prefill
from tests.engine.worker.harness import chains

WARM = Sampling(1.0, top_p=0.95, seed=2)
PREFIX = Prefix(0, np.arange(20, 29))
TRUNK = (300, 301, 302)
VOCAB = 4096
LESS = (Damping(0.2, 2), Damping(0.5, 3), Damping(0.9, 1))


class Drafter:
    """The bundled drafter on a host, after a prefill."""

    def __init__(self, sampling):
        pair = Pair.find("bundled")
        self.host, self.q = Host("drafter"), np.zeros((99, VOCAB), dtype=np.float32)
        self.host.handle(Load("drafter", partial(load, pair.drafter_path, name="drafter")))
        self.host.q_buffers = {"drafter": self.q}
        self.host.handle(Begin(sampling, 1, 160, VOCAB, Packing(), 1))
        self.host.handle(Prefill("drafter", (PREFIX,)))

    def fan(self, forks=(2, 1, 3, 2), lengths=(3, 3, 2, 1), damping=(), stopped=never):
        numbers = count()
        sampled = not self.host.forwards.run.sampling.greedy
        each = [length for fork, length in zip(forks, lengths, strict=True) for _ in range(fork)]
        rows = tuple(tuple(next(numbers) for _ in range(length)) for length in each) if sampled else ()
        job = Fan("drafter", (PREFIX,), TRUNK, forks, lengths, sampled, rows, damping)
        return self.host.handle(job, stopped)

    def chain(self, tokens, n, damping=()):
        sampled = not self.host.forwards.run.sampling.greedy
        rows = (tuple(range(90, 90 + n)),) if sampled else ((),)
        job = chains("drafter", [PREFIX + tokens], [n], sampled=sampled, rows=rows, damping=damping)
        return self.host.handle(job)


@pytest.mark.parametrize(("sampling", "damping"), [(Sampling(), ()), (WARM, ()), (WARM, LESS)], ids=str)
def test_each_branch_is_the_chain_after_its_guess(sampling, damping):
    branches = Drafter(sampling).fan(damping=damping).value
    assert [branch.place for branch in branches] == [0, 0, 1, 2, 2, 2, 3, 3]
    assert [len(branch.chain) for branch in branches] == [3, 3, 3, 2, 2, 2, 1, 1]
    alone, together = Drafter(sampling), Drafter(sampling)
    together.fan(damping=damping)
    for branch in branches:
        start = (*TRUNK[: branch.place], branch.token)
        ((*chain,),) = alone.chain(start, len(branch.chain), damping).value
        assert [node[:3] for node in branch.chain] == [node[:3] for node in chain]
        expected = [node.probability for node in chain]
        assert [node.probability for node in branch.chain] == pytest.approx(expected, rel=1e-4)
        for node, other in zip(branch.chain, chain, strict=True):
            if node.row >= 0:
                assert together.q[node.row] == pytest.approx(alone.q[other.row], abs=1e-5)
                assert together.q[node.row].sum() == pytest.approx(1, abs=1e-5)


def test_the_guesses_are_the_most_probable_tokens_but_the_drafts_next_one():
    drafter = Drafter(WARM)
    ((first, *_),) = drafter.chain((), 1).value
    best = [token for token, _ in Drafter(Sampling()).chain((), 1).value[0][0].top]
    job = Fan("drafter", (PREFIX,), (best[0], 5), (3, 1, 1), (1, 0, 0), False, ())
    branches = Drafter(Sampling()).host.handle(job).value
    assert [branch.token for branch in branches] == best[1:4], "places without tokens have no branch"
    probabilities = [branch.probability for branch in branches]
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 < sum(probabilities) < 1
    assert first.probability > 0


def test_each_step_is_one_forward_and_a_taken_branch_stays_cached():
    drafter = Drafter(Sampling())
    reply = drafter.fan()
    kinds = [(stamp.kind, stamp.rows) for stamp in reply.stamps]
    assert kinds == [("glue", 4), ("branch", 8), ("branch", 6), ("branch", 3)]
    forwards = [[node.forward for node in branch.chain] for branch in reply.value]
    assert forwards[0] == [1, 2, 3]
    taken = reply.value[3]
    text = (*TRUNK[:2], taken.token, *(node.id for node in taken.chain))
    assert [stamp.rows for stamp in drafter.chain(text, 2).stamps] == [1, 1]


def test_a_place_without_tokens_needs_no_row():
    reply = Drafter(Sampling()).fan(lengths=(2, 1, 0, 0))
    assert [(stamp.kind, stamp.rows) for stamp in reply.stamps] == [("glue", 2), ("branch", 3), ("branch", 2)]
    assert {branch.place for branch in reply.value} == {0, 1}


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_stop_leaves_the_guesses_and_the_tokens_so_far(steps):
    asked, whole = count(), Drafter(WARM).fan().value
    reply = Drafter(WARM).fan(stopped=lambda: next(asked) == steps)
    assert [stamp.kind for stamp in reply.stamps] == ["glue", *["branch"] * steps]
    for branch, expected in zip(reply.value, whole, strict=True):
        assert branch[:2] == expected[:2]
        assert [node[:3] for node in branch.chain] == [node[:3] for node in expected.chain[:steps]]
