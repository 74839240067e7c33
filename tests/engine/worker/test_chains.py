"""Workers with static forwards draft chains, and read a job's times once."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import UsageError
from specscope.engine.layout import Packing
from specscope.engine.model.clock import StreamClock
from specscope.engine.model.fused import FusedDrafts
from specscope.engine.types import Prefix, Sampling
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Load, Prefill
from tests.engine.model.test_clock import FakeStream
from tests.engine.worker.harness import chains

WARM = Sampling(1.0, top_p=0.9, seed=2)
PREFIXES = (Prefix(0, range(20, 29)), Prefix(1, range(40, 46)), Prefix(2, range(60, 73)))
COUNTS = (4, 0, 6)
VOCAB = 4096


class Drafter:
    """A drafter on a host, after the prefill of three sequences."""

    def __init__(self, sampling, static, packing=Packing()):  # noqa: B008
        pair = Pair.find("bundled")
        self.host, self.q = Host("drafter"), np.zeros((10, VOCAB), dtype=np.float32)
        self.host.handle(Load("drafter", partial(load, pair.drafter_path, name="drafter", static=static)))
        self.host.q_buffers = {"drafter": self.q}
        self.host.handle(Begin(sampling, 3, 64, VOCAB, packing, 1))
        self.host.handle(Prefill("drafter", PREFIXES))

    def propose(self, sampled, stop_below=0.0, counts=COUNTS):
        more = {"rows": ((0, 1, 2, 3), (), (4, 5, 6, 7, 8, 9))} if sampled else {}
        job = chains("drafter", PREFIXES, counts, sampled=sampled, stop_below=stop_below, **more)
        return self.host.handle(job)


@pytest.fixture
def chained(monkeypatch):
    """Return the list that counts chains."""
    calls, draft = [], FusedDrafts.draft
    monkeypatch.setattr(FusedDrafts, "draft", lambda *args, **kw: calls.append(1) or draft(*args, **kw))
    return calls


@pytest.mark.parametrize("sampling", [Sampling(), WARM])
def test_a_chain_equals_the_loop(sampling, chained):
    static, eager = Drafter(sampling, static=True), Drafter(sampling, static=False)
    for _ in range(2):  # the second time after a rejection of all drafts
        replies = [drafter.propose(not sampling.greedy) for drafter in (static, eager)]
        drafts, expected = ([list(map(len, r.value)), r.value] for r in replies)
        assert drafts[0] == expected[0] == list(COUNTS)
        for ours, theirs in zip(drafts[1], expected[1], strict=True):
            assert [node[:4] for node in ours] == [node[:4] for node in theirs]
            assert [n.probability for n in ours] == pytest.approx([n.probability for n in theirs], rel=1e-4)
        assert [s[0] for s in replies[0].stamps] == ["draft"] * 6
        assert [s[3:5] for s in replies[0].stamps] == [s[3:5] for s in replies[1].stamps]
        if not sampling.greedy:
            assert static.q == pytest.approx(eager.q, abs=1e-6)
    assert len(chained) == 2


def test_drafts_that_end_early_and_padded_ones_are_a_loop(chained):
    Drafter(Sampling(), static=True).propose(False, stop_below=0.4)
    Drafter(Sampling(), static=True, packing=Packing(unpad_kv=False)).propose(False)
    Drafter(Sampling(), static=True).propose(False, counts=(1, 1, 1))
    with pytest.raises(UsageError, match="its capacity is 64"):
        Drafter(Sampling(), static=True).propose(False, counts=(4, 60, 4))
    assert not chained


def test_a_job_waits_for_its_device_once():
    drafter, stream = Drafter(Sampling(), static=True), FakeStream()
    drafter.host.forwards.clock = StreamClock(stream.event)
    before = stream.waits
    stamps = drafter.propose(False).stamps
    assert stream.waits == before + 1
    times = [time for stamp in stamps for time in (stamp.start, stamp.end)]
    assert min(times) > 0
    assert times == sorted(times)
