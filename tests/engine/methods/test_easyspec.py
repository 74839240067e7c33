"""EasySpec: fuzzy drafts, calibration, layers shared by devices; rounds in virtual time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import specscope
from specscope.engine.checkpoints.loader import load
from specscope.engine.drafting.tree import Wide
from specscope.engine.errors import UsageError
from specscope.engine.layout import Packing
from specscope.engine.model.clock import StreamClock
from specscope.engine.types import Limits, Prefix, Sampling
from specscope.engine.worker.exchange import exchange_memory
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import Begin, Join, LoadModel, Prefill, Propose
from specscope.traces.facts.metrics import measure
from tests.engine.model import tiny
from tests.engine.model.test_clock import FakeStream
from tests.engine.worker.harness import Flat, chains, scripted_cluster

LAYERS = 9
TEXT = [5, 9, 40, 3, 77, 12, 60, 31, 8, 2, 64, 20]
WARM = Sampling(1.2, seed=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """A random drafter of 9 layers: 0, 1-3, 4-7, 8."""
    folder = tmp_path_factory.mktemp("easyspec")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny._SIZES, "num_hidden_layers", LAYERS)
        model = tiny.reference("qwen3", seed=3)
    tiny.save(model, folder)
    return folder


class DrafterWorker:
    """The host of one worker with a drafter of 9 layers."""

    def __init__(self, path: Path, sampling: Sampling = WARM) -> None:
        self.host = Host("mine")
        self.q = np.zeros((64, tiny.VOCAB), dtype=np.float32)
        self.host.q_buffers = {"mine": self.q}
        dtype = torch.float32
        self.host.handle(
            LoadModel("drafter", lambda: load(str(path), device="cpu", dtype=dtype, name="drafter"))
        )
        self.begin(sampling)

    def begin(self, sampling: Sampling = WARM, run: int = 1) -> None:
        self.host.handle(Begin(sampling, 1, 64, tiny.VOCAB, Packing(), run))

    def prefill(self, tokens) -> None:
        self.host.handle(Prefill("drafter", (prefix(tokens),)))

    def propose(self, tokens, n: int = 4):
        return self.host.handle(
            chains("drafter", (prefix(tokens),), (n,), sampled=True, rows=(tuple(range(n)),))
        )

    def grow(self, tokens, size: int = 4, width: int = 1, depth: int = 4, **more):
        shape, rows = Wide(width, depth), tuple(range(40))
        job = Propose("drafter", (prefix(tokens),), shape, (depth,), True, (rows,), fuzzy=size, **more)
        reply = self.host.handle(job)
        return reply._replace(value=reply.value[0])

    @property
    def cache(self):
        return self.host.forwards.cache("drafter")

    def kv(self, length: int) -> torch.Tensor:
        return self.cache.tensor[:, 0, :, :length].clone()


def prefix(tokens) -> Prefix:
    return Prefix(0, np.asarray(tokens, dtype=np.int64))


@pytest.fixture
def drafter(path) -> DrafterWorker:
    return DrafterWorker(path)


def test_the_first_drafted_token_is_exact_and_the_later_ones_are_fuzzy(drafter, path):
    plain = DrafterWorker(path)
    (exact,) = plain.propose(TEXT).value
    fuzzy = drafter.grow(TEXT).value
    assert (fuzzy[0].id, fuzzy[0].probability) == (exact[0].id, exact[0].probability)
    assert np.array_equal(drafter.q[0], plain.q[0])
    again = plain.propose([*TEXT, fuzzy[0].id], 1).value[0][0]
    assert abs(fuzzy[1].probability - again.probability) > 1e-4 or fuzzy[1].id != again.id
    assert not np.allclose(drafter.q[1], plain.q[0], atol=1e-4)


def test_stamps_show_calibration_and_layers_whose_times_are_read_with_one_wait(drafter):
    """On a stream the host waits for no layer: the parts' times are marks."""
    drafter.prefill(TEXT)
    stream = FakeStream()
    drafter.host.forwards.clock = StreamClock(stream.event)
    aligned = stream.waits
    stamps = drafter.grow(TEXT).stamps
    assert stream.waits == aligned + 1
    assert [(s.kind, s.rows, s.context) for s in stamps] == [
        ("calibrate", 1, 11), ("draft", 1, 12), ("draft", 1, 13), ("draft", 1, 14)
    ]  # fmt: skip
    layers = [("attention", i) for i in range(1, 8)]
    assert [[(p.kind, p.layer) for p in s.parts] for s in stamps] == [[], *[layers] * 3]
    for stamp in stamps[1:]:
        times = [time for part in stamp.parts for time in (part.start, part.end)]
        assert stamp.start < times[0]
        assert times == sorted(times)
        assert times[-1] < stamp.end


@pytest.mark.parametrize(("size", "width"), [(2, 1), (4, 4), (5, 1)])
def test_fuzzy_rows_never_count_as_cached_and_calibrated_ones_are_the_ordinary_drafters(
    drafter, path, size, width
):
    tokens = list(TEXT)
    drafter.prefill(tokens)
    for accepted in (3, 0, 1, 2):
        tree = drafter.grow(tokens, size, width).value
        branch = [tree[0].id]
        while len(branch) < 4:  # the path of first children
            at = next(i for i, node in enumerate(tree) if node.level == len(branch) - 1)
            branch.append(next(node.id for node in tree if node.parent == at))
        drafts = prefix(tokens + branch).tokens
        assert len(drafter.cache.match(0, drafts, len(drafts))) == len(tokens)
        tokens += [*branch[:accepted], 30 + accepted]
        calibrate = drafter.grow(tokens, size, width, depth=1).stamps[0]
        assert (calibrate.kind, calibrate.rows) == ("calibrate", accepted + 1)
    ordinary = DrafterWorker(path)
    ordinary.prefill(tokens)
    ordinary.propose(tokens, 1)
    torch.testing.assert_close(drafter.kv(len(tokens)), ordinary.kv(len(tokens)), atol=1e-4, rtol=1e-4)


def test_without_calibration_fuzzy_rows_are_kept_and_used(drafter, path):
    drafter.prefill(TEXT)
    first = drafter.grow(TEXT, calibrate=False)
    assert all(s.kind == "draft" and s.parts for s in first.stamps)
    tokens = [*TEXT, *(node.id for node in first.value[:3]), 33]
    second = drafter.grow(tokens, calibrate=False)
    assert [(s.rows, s.context) for s in second.stamps[:1]] == [(1, len(tokens) - 1)]
    ordinary = DrafterWorker(path)
    ordinary.propose(tokens, 1)
    assert not torch.allclose(drafter.kv(len(tokens)), ordinary.kv(len(tokens)), atol=1e-3)


@pytest.mark.parametrize(
    ("ways", "more"),
    [(5, {}), (2, {"width": 4, "depth": 3}), (2, {"calibrate": False}), (5, {"size": 2})],
    ids=str,
)
def test_devices_that_share_layers_draft_the_same_as_one_device(path, ways, more):
    def work(worker: DrafterWorker, group: str) -> list[object]:
        tokens, replies = list(TEXT), list[object]()
        worker.prefill(tokens)
        for accepted in (2, 0, 3):
            reply = worker.grow(tokens, **more, group=group)
            replies.append([reply.value, [(s.kind, s.rows, s.context) for s in reply.stamps]])
            tokens += [*(node.id for node in reply.value[:accepted]), 33]
        return replies

    alone = DrafterWorker(path)
    expected = work(alone, "")
    members, memory = [DrafterWorker(path) for _ in range(ways)], exchange_memory(ways)
    for rank, member in enumerate(members):
        member.host.handle(Join("group", memory.path, rank, ways))
        member.begin(run=7)
    memory.close()
    with ThreadPoolExecutor(ways) as pool:
        replies = list(pool.map(lambda worker: work(worker, "group"), members))
    assert replies == [expected] * ways
    assert np.array_equal(members[0].q, alone.q)
    assert not any(member.q.any() for member in members[1:]), "only the leader writes q"


# EasySpec in virtual time: rounds, devices, calibration, the formula of its profile.


def next_token(path) -> int:
    return (int(path[-1]) * 7 + len(path)) % 500 + 10


def test_a_round_takes_the_hand_computed_time_on_its_devices():
    latency = Flat(1000, 250, sample_us=30, communicate_us=20, fuzzy_us=100)
    with scripted_cluster(next_token, next_token, latency) as cluster:
        trace = cluster.run("easyspec", [1, 2, 3], config={"gamma": 3, "size": 3}, limits=cluster.limits(12))
    assert [(r.drafted, r.accepted, r.emitted) for r in trace.rounds] == [(3, 3, 4)] * 3
    start = max(s.end for s in trace.spans if s.kind == "prefill")
    round_us = 250 + 2 * 100 + 1000 + 20 + 30
    assert [r.time - start for r in trace.rounds] == [1000 * round_us * i for i in (1, 2, 3)]
    first = [s for s in trace.spans if s.step == 1]
    lanes = {kind: [s.device for s in first if s.kind == kind] for kind in ("calibrate", "draft", "verify")}
    assert lanes == {
        "calibrate": ["gpu0", "gpu1", "gpu2"],
        "draft": ["gpu0", "gpu1", "gpu2"] * 2,
        "verify": ["gpu0", "gpu1"],
    }
    assert {p.span for p in trace.parts} == {s.id for s in trace.spans if s.kind == "draft"}
    figures = measure(trace)
    assert (figures.target_forwards, figures.draft_forwards, figures.wasted_device_seconds) == (3, 9, 0)


@pytest.mark.parametrize(("size", "drafting", "target"), [(1, ["0-7"], ["0-7"]), (4, "0123", "01234567")])
def test_times_of_a_profile_follow_its_formula(size, drafting, target):
    with specscope.open(runtime="virtual", profile="8xA100", profile_pair="llama-3-8-70-tp8") as cluster:
        config = {"gamma": 4, "size": size}
        trace = cluster.run("easyspec", "Tell me a story.", config=config, limits=Limits(16))
        latency = cluster.placement.pool.site.latency
    drafts = [s for s in trace.spans if s.model == "drafter" and s.kind != "prefill"]
    for span in drafts:
        ordinary = latency("drafter", span.rows, span.context)
        shared = latency.parallel("drafter", span.rows, span.context, size)
        assert span.end - span.start == 1000 * (shared if span.kind == "draft" else ordinary)
        assert span.kind != "draft" or size == 1 or shared < ordinary
    assert {s.device for s in trace.spans if s.model == "target"} == {f"gpu{name}" for name in target}
    assert {s.device for s in drafts} == {f"gpu{name}" for name in drafting}
    assert {p.layer for p in trace.parts if p.kind == "attention"} == set(range(1, 31) if size > 1 else ())


def test_a_profile_without_collective_times_drafts_on_one_device():
    with specscope.open(runtime="virtual", profile="pearl-3xA100") as cluster:
        trace = cluster.run("easyspec", "Hi", limits=Limits(8))
        assert trace.header.config["devices"] == 1
        with pytest.raises(UsageError, match="devices is 2; it must be at least 0 and at most 1"):
            cluster.run("easyspec", "Hi", config={"devices": 2}, limits=Limits(8))
