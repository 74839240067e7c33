"""Chains without a host between their forwards, and branches, are the loop's chains."""

from functools import partial
from itertools import count

import numpy as np
import pytest

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.layout import Packing
from specscope.engine.model.clock import StreamClock
from specscope.engine.model.fused import FusedDrafts
from specscope.engine.model.language import never
from specscope.engine.types import Damping, Prefix, Sampling
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Fan, LoadModel, Prefill
from tests.engine.model.test_clock import FakeStream
from tests.engine.worker.harness import chains

GREEDY, WARM = Sampling(), Sampling(1.0, top_p=0.9, seed=2)
PREFIXES = (Prefix(0, np.arange(20, 29)), Prefix(1, np.arange(40, 46)), Prefix(2, np.arange(60, 73)))
COUNTS = (4, 0, 6)
TRUNK = (300, 301, 302)
VOCAB = 4096
LESS = (Damping(0.2, 2), Damping(0.5, 3), Damping(0.9, 1))


class Drafter:
    """The bundled drafter on a host, after the prefill of three sequences."""

    def __init__(self, sampling=GREEDY, static=False, room=160, **packing):
        path = Pair.find("bundled").drafter_path
        self.sampled = not sampling.greedy
        self.host, self.q = Host("drafter"), np.zeros((99, VOCAB), dtype=np.float32)
        self.host.handle(
            LoadModel("drafter", partial(load, path, name="drafter", forward="static" if static else "eager"))
        )
        self.host.q_buffers = {"drafter": self.q}
        self.host.handle(Begin(sampling, 3, room, VOCAB, Packing(**packing), 1))
        self.host.handle(Prefill("drafter", PREFIXES))

    def propose(self, prefixes=PREFIXES, counts=COUNTS, first=0, **more):
        """Draft chains whose rows of q begin with the first."""
        rows = count(first)
        places = tuple(tuple(next(rows) for _ in range(n if self.sampled else 0)) for n in counts)
        return self.host.handle(
            chains("drafter", prefixes, counts, sampled=self.sampled, rows=places, **more)
        )

    def chain(self, tokens, n, damping=()):
        return self.propose([PREFIXES[0] + tokens], [n], 90, damping=damping)

    def fan(self, forks=(2, 1, 3, 2), lengths=(3, 3, 2, 1), damping=(), stopped=never):
        each, numbers = [n for fork, n in zip(forks, lengths, strict=True) for _ in range(fork)], count()
        rows = tuple(tuple(next(numbers) for _ in range(n)) for n in each) if self.sampled else ()
        job = Fan("drafter", PREFIXES[:1], TRUNK, forks, lengths, self.sampled, rows, damping)
        return self.host.handle(job, stopped)


@pytest.fixture
def chained(monkeypatch):
    """Return the list that counts chains."""
    calls, draft = [], FusedDrafts.draft
    monkeypatch.setattr(FusedDrafts, "draft", lambda *args, **kw: calls.append(1) or draft(*args, **kw))
    return calls


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_a_static_chain_equals_the_loop(sampling, chained):
    static, eager = Drafter(sampling, static=True), Drafter(sampling)
    for _ in range(2):  # the second time after a rejection of all drafts
        ours, theirs = static.propose(), eager.propose()
        assert [len(nodes) for nodes in ours.value] == [len(nodes) for nodes in theirs.value] == [*COUNTS]
        for mine, other in zip(ours.value, theirs.value, strict=True):
            assert [node[:4] for node in mine] == [node[:4] for node in other]
            assert [n.probability for n in mine] == pytest.approx([n.probability for n in other], rel=1e-4)
        assert [s[0] for s in ours.stamps] == ["draft"] * 6
        assert [s[3:5] for s in ours.stamps] == [s[3:5] for s in theirs.stamps]
        if static.sampled:
            assert static.q == pytest.approx(eager.q, abs=1e-6)
    assert len(chained) == 2


def test_drafts_that_end_early_and_padded_ones_are_a_loop(chained):
    Drafter(static=True).propose(stop_below=0.4)
    Drafter(static=True, unpad_kv=False).propose()
    Drafter(static=True).propose(counts=(1, 1, 1))
    with pytest.raises(UsageError, match="its capacity is 64"):
        Drafter(static=True, room=64).propose(counts=(4, 60, 4))
    assert not chained


def test_a_job_waits_for_its_device_once():
    drafter, stream = Drafter(static=True), FakeStream()
    drafter.host.forwards.clock = StreamClock(stream.event)
    before = stream.waits
    times = [time for stamp in drafter.propose().stamps for time in (stamp.start, stamp.end)]
    assert stream.waits == before + 1
    assert min(times) > 0
    assert times == sorted(times)


@pytest.mark.parametrize(("sampling", "damping"), [(GREEDY, ()), (WARM, ()), (WARM, LESS)], ids=str)
def test_each_branch_is_the_chain_after_its_guess(sampling, damping):
    alone, together = Drafter(sampling), Drafter(sampling)
    branches = together.fan(damping=damping).value
    assert [branch.place for branch in branches] == [0, 0, 1, 2, 2, 2, 3, 3]
    assert [len(branch.chain) for branch in branches] == [3, 3, 3, 2, 2, 2, 1, 1]
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
    best = [token for token, _ in Drafter().chain((), 1).value[0][0].top]
    job = Fan("drafter", PREFIXES[:1], (best[0], 5), (3, 1, 1), (1, 0, 0), False, ())
    branches = Drafter().host.handle(job).value
    assert [branch.token for branch in branches] == best[1:4], "places without tokens have no branch"
    probabilities = [branch.probability for branch in branches]
    assert probabilities == sorted(probabilities, reverse=True)
    assert 0 < sum(probabilities) < 1


def test_each_step_is_one_forward_and_a_taken_branch_stays_cached():
    drafter = Drafter()
    reply = drafter.fan()
    kinds = [(stamp.kind, stamp.rows) for stamp in reply.stamps]
    assert kinds == [("glue", 4), ("branch", 8), ("branch", 6), ("branch", 3)]
    assert [node.forward for node in reply.value[0].chain] == [1, 2, 3]
    taken = reply.value[3]
    text = (*TRUNK[:2], taken.token, *(node.id for node in taken.chain))
    assert [stamp.rows for stamp in drafter.chain(text, 2).stamps] == [1, 1]
    fewer = Drafter().fan(lengths=(2, 1, 0, 0))
    assert [(stamp.kind, stamp.rows) for stamp in fewer.stamps] == [("glue", 2), ("branch", 3), ("branch", 2)]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_stop_leaves_the_guesses_and_the_tokens_so_far(steps):
    asked, whole = count(), Drafter(WARM).fan().value
    reply = Drafter(WARM).fan(stopped=lambda: next(asked) == steps)
    assert [stamp.kind for stamp in reply.stamps] == ["glue", *["branch"] * steps]
    for branch, expected in zip(reply.value, whole, strict=True):
        assert branch[:2] == expected[:2]
        assert [node[:3] for node in branch.chain] == [node[:3] for node in expected.chain[:steps]]
