"""EasySpec: fuzzy drafts, bonus calibration, layers shared by devices, and what its trace and its times are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import engine
from engine.drafters.tree import Wide
from engine.draws import Draws, warp
from engine.errors import UsageError
from engine.methods import find
from engine.methods.easyspec import Config, plan
from engine.pairs.load import load
from engine.types import Draft, Limits, Packing, Prefix, Sampling
from engine.workers.exchange import exchange_memory
from engine.workers.host import Host
from engine.workers.jobs import Begin, Grow, Join, Load, Prefill, Propose
from tests.engine.methods.pairs import make_pair
from tests.engine.methods.test_lossless import assert_same, generate
from tests.engine.model import tiny
from tests.engine.test_joint import BIASED, EXACT, ONE, joint, target_joint
from tests.engine.test_reference import SAMPLINGS, Reference, Round, rounds_of
from tests.engine.toy import PROMPT, Blurred, Table, ToyRun, distance
from tests.engine.workers.harness import Flat, scripted_cluster
from traces.metrics import measure

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


class Drafter:
    """One worker with a drafter, as a run talks to it."""

    def __init__(self, path: Path, sampling: Sampling = WARM) -> None:
        self.host = Host("mine")
        self.q = np.zeros((64, tiny.VOCAB), dtype=np.float32)
        self.host.connect({"mine": self.q})
        dtype = torch.float32
        self.host.handle(Load("drafter", lambda: load(str(path), device="cpu", dtype=dtype, name="drafter")))
        self.begin(sampling)

    def begin(self, sampling: Sampling = WARM, run: int = 1) -> None:
        self.host.handle(Begin(sampling, 1, 64, tiny.VOCAB, Packing(), run))

    def prefill(self, tokens) -> None:
        self.host.handle(Prefill("drafter", (prefix(tokens),)))

    def propose(self, tokens, n: int = 4):
        return self.host.handle(Propose("drafter", (prefix(tokens),), (n,), True, (tuple(range(n)),)))

    def grow(self, tokens, size: int = 4, width: int = 1, depth: int = 4, **more):
        shape, rows = Wide(width, depth), tuple(range(40))
        job = Grow("drafter", (prefix(tokens),), shape, (depth,), True, (rows,), size, **more)
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
def drafter(path) -> Drafter:
    return Drafter(path)


# The worker: what is drafted, and which rows are kept.


@pytest.mark.parametrize("sampling", [WARM, Sampling()])
def test_size_1_is_the_ordinary_drafter_bit_for_bit(path, sampling):
    fuzzy, plain = Drafter(path, sampling), Drafter(path, sampling)
    tokens = list(TEXT)
    for _ in range(4):
        grown, proposed = fuzzy.grow(tokens, size=1), plain.propose(tokens)
        ids = [node.id for node in grown.value]
        assert ids == [token.id for token in proposed.value[0]]
        assert [node.top for node in grown.value] == [token.top for token in proposed.value[0]]
        assert [s[3:6] for s in grown.stamps] == [s[3:6] for s in proposed.stamps]
        assert not any(stamp.parts for stamp in grown.stamps)
        assert np.array_equal(fuzzy.q, plain.q)
        assert fuzzy.q[:4].any() != sampling.greedy
        tokens += [*ids[:2], 50]


def test_the_first_draft_is_exact_and_the_others_are_fuzzy(drafter, path):
    plain = Drafter(path)
    (exact,) = plain.propose(TEXT).value
    fuzzy = drafter.grow(TEXT).value
    assert (fuzzy[0].id, fuzzy[0].probability) == (exact[0].id, exact[0].probability)
    assert np.array_equal(drafter.q[0], plain.q[0])
    again = plain.propose([*TEXT, fuzzy[0].id], 1).value[0][0]
    assert abs(fuzzy[1].probability - again.probability) > 1e-4 or fuzzy[1].id != again.id
    assert not np.allclose(drafter.q[1], plain.q[0], atol=1e-4)


def test_stamps_say_what_was_calibrated_and_which_layers_ran_together(drafter):
    drafter.prefill(TEXT)
    stamps = drafter.grow(TEXT).stamps
    assert [(s.kind, s.rows, s.context) for s in stamps] == [
        ("calibrate", 1, 11), ("draft", 1, 12), ("draft", 1, 13), ("draft", 1, 14)
    ]  # fmt: skip
    assert [[(p.kind, p.layer) for p in s.parts] for s in stamps] == [
        [],
        *[[("attention", i) for i in range(1, 8)]] * 3,
    ]
    assert all(s.start <= p.start <= p.end <= s.end for s in stamps for p in s.parts)


@pytest.mark.parametrize("width", [1, 4])
def test_fuzzy_rows_never_count_as_cached(drafter, width):
    tokens = list(TEXT)
    for accepted in (0, 1, 2, 3):
        drafter.prefill(tokens)
        tree = drafter.grow(tokens, width=width).value
        branch = [tree[0].id]
        while len(branch) < 4:  # the path of first children
            at = next(i for i, node in enumerate(tree) if node.level == len(branch) - 1)
            branch.append(next(node.id for node in tree if node.parent == at))
        drafts = prefix(tokens + branch).tokens
        assert len(drafter.cache.match(0, drafts, len(drafts))) == len(tokens)
        tokens += [*branch[:accepted], 30 + accepted]
        calibrate = drafter.grow(tokens, width=width, depth=1).stamps[0]
        assert (calibrate.kind, calibrate.rows) == ("calibrate", accepted + 1)


@pytest.mark.parametrize("size", [2, 4, 5])
def test_after_calibration_the_kv_rows_are_those_of_the_ordinary_drafter(drafter, path, size):
    tokens = list(TEXT)
    for accepted in (3, 0, 2):
        tree = drafter.grow(tokens, size=size).value
        tokens += [*(node.id for node in tree[:accepted]), 33]
    drafter.grow(tokens, size=size)
    ordinary = Drafter(path)
    ordinary.prefill(tokens)
    ordinary.propose(tokens, 1)
    torch.testing.assert_close(drafter.kv(len(tokens)), ordinary.kv(len(tokens)), atol=1e-4, rtol=1e-4)


def test_without_calibration_fuzzy_rows_are_kept_and_used(drafter, path):
    drafter.prefill(TEXT)
    first = drafter.grow(TEXT, calibrate=False)
    assert {s.kind for s in first.stamps} == {"draft"}
    assert all(s.parts for s in first.stamps)
    tokens = [*TEXT, *(node.id for node in first.value[:3]), 33]
    second = drafter.grow(tokens, calibrate=False)
    assert [(s.rows, s.context) for s in second.stamps[:1]] == [(1, len(tokens) - 1)]
    ordinary = Drafter(path)
    ordinary.propose(tokens, 1)
    assert not torch.allclose(drafter.kv(len(tokens)), ordinary.kv(len(tokens)), atol=1e-3)
    calibrated = Drafter(path)
    calibrated.prefill(TEXT)
    calibrated.grow(TEXT)
    calibrated.grow(tokens)
    assert not np.allclose(calibrated.q[:4], drafter.q[:4], atol=1e-4)


@pytest.mark.parametrize("ways", [2, 3, 5])
@pytest.mark.parametrize("more", [{}, {"width": 4, "depth": 3}, {"calibrate": False}, {"size": 2}], ids=str)
def test_devices_that_share_the_layers_draft_what_one_does(path, ways, more):
    def work(end: Drafter, group: str) -> list[object]:
        tokens, found = list(TEXT), list[object]()
        end.prefill(tokens)
        for accepted in (2, 0, 3):
            reply = end.grow(tokens, **more, group=group)
            found.append([reply.value, [(s.kind, s.rows, s.context) for s in reply.stamps]])
            tokens += [*(node.id for node in reply.value[:accepted]), 33]
        return found

    alone = Drafter(path)
    expected = work(alone, "")
    members, memory = [Drafter(path) for _ in range(ways)], exchange_memory(ways)
    for rank, member in enumerate(members):
        member.host.handle(Join("us", memory.path, rank, ways))
        member.begin(run=7)
    memory.close()
    with ThreadPoolExecutor(ways) as pool:
        found = list(pool.map(lambda end: work(end, "us"), members))
    assert found == [expected] * ways
    assert np.array_equal(members[0].q, alone.q)
    assert not any(member.q.any() for member in members[1:]), "q is the leader's to write"


# The method, against tables and slow references.


def reference(exact: Reference, fuzzy: Reference, x: list[int], gamma: int, calibrate: bool, end: int):
    """Draft and verify from the whole text each time: the first draft exact, the later ones fuzzy."""
    rounds = []
    while len(x) < end:
        drafts: list[int] = []
        sources = [exact if calibrate and i == 0 else fuzzy for i in range(min(gamma, end - len(x)))]
        for source in sources:
            drafts.append(source.draft(x + drafts))
        out: list[int] = []
        while len(out) < len(drafts) and out == drafts[: len(out)]:
            out.append(sources[len(out)].check(x + out, drafts[len(out)]))
        accepted = sum(a == b for a, b in zip(out, drafts, strict=False))
        if accepted == len(drafts):
            out.append(exact.own(x + out))
        x = x + out
        rounds.append(Round(accepted, tuple(out)))
    return rounds


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("calibrate", [True, False])
def test_every_round_is_that_of_the_reference(calibrate, sampling):
    lengths = set()
    for seed in range(4):
        p, q = Table(seed, 6, sharpness=1.5), Blurred(seed, 6)
        run = ToyRun(p, q, Draws(seed, 0), sampling, 40)
        found = rounds_of("easyspec", {"gamma": 3, "calibrate": calibrate}, run)
        sides = (Reference(p, table, sampling, Draws(seed, 0), True) for table in (q, q.fuzzy))
        assert found == reference(*sides, list(PROMPT), 3, calibrate, len(PROMPT) + 40)
        lengths |= {r.accepted for r in found}
    assert len(lengths) > 1, "rejections and acceptances both occur"


def test_judging_a_fuzzy_draft_by_the_exact_q_would_be_found():
    p, q = Table(21), Blurred(22)

    async def wrong(run: ToyRun) -> None:
        while not run.done:
            draft = await run.drafter.grow(run.x, Wide(1, 2), fuzzy=4)
            context = [*run.x.tokens.tolist(), *draft.ids[:1]]
            exact = run.keep(warp(q(context)[None], run.sampling)[0])
            tokens = [replace(t, q=exact) if i == 1 else t for i, t in enumerate(draft.tokens)]
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    method = find("easyspec")
    right = lambda run: method.decode(run, method.configure({"gamma": 2}))  # noqa: E731
    assert distance(joint(wrong, p, q, ONE), target_joint(p, ONE)) > BIASED
    assert distance(joint(right, p, q, ONE), target_joint(p, ONE)) < EXACT


# Settings.


class Room:
    """What a plan may know."""

    c = 4.0

    def __init__(self, depth: int, devices: int) -> None:
        self.depth, self.devices = depth, devices

    def servers(self, drafters: int) -> int:
        return 1


@pytest.mark.parametrize(
    ("depth", "there", "asked", "planned"),
    [(32, 8, {}, 4), (32, 2, {}, 2), (4, 1, {}, 1), (0, 8, {"size": 5}, 5), (32, 8, {"devices": 3}, 3)],
)
def test_devices_are_as_many_as_there_are_up_to_the_size(depth, there, asked, planned):
    assert plan(Config(**asked), Room(depth, there)).devices == planned


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"size": 5}, "size is 5; with a drafter of 4 layers it must be at least 1 and at most 4"),
        ({"size": 6}, "size is 6; it must be at least 1 and at most 5"),
        ({"devices": 3}, "devices is 3; it must be at least 0 and at most 2"),
        ({"size": 1, "devices": 2}, "devices is 2; it must be at least 0 and at most 1"),
        ({"width": 8, "gamma": 9}, "width 8 times gamma 9 is 72 nodes; .* gamma is at most 8"),
    ],
)
def test_settings_out_of_range_are_refused_with_value_and_range(bundled, monkeypatch, config, message):
    monkeypatch.setattr(type(bundled.placement.site), "ranks", lambda _: 2)
    with pytest.raises(UsageError, match=message):
        bundled.run("easyspec", "Hi", config=config, limits=Limits(4))


@pytest.fixture(scope="module")
def bundled():
    with engine.open(device="cpu", runtime="local-thread") as cluster:
        yield cluster


# Real models.


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=3)])
def test_size_1_leaves_the_rows_of_speculative(bundled, sampling):
    def rows(method: str, **config: object):
        trace = bundled.run(
            method, "Tell me a story.", config={"gamma": 4, **config}, sampling=sampling, limits=Limits(40)
        )
        times = {"time": 0, "span": 0, "draft_span": 0, "verify_span": 0}
        return [
            replace(row, **{name: 0 for name in times if hasattr(row, name)})
            for row in (*trace.rounds, *trace.commits, *trace.decisions)
        ]

    assert rows("easyspec", size=1) == rows("speculative")


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("family", ["llama3-rope", "mistral-window"])
def test_text_of_deep_models_is_the_targets(tmp_path, family, devices):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny._SIZES, "num_hidden_layers", LAYERS)
        pair, model = make_pair(tmp_path, family, "other")
    with engine.open(pair, runtime="local-thread", device="cpu") as cluster:
        for size, width, calibrate in ((2, 1, True), (4, 1, False), (5, 4, True), (4, 3, False)):
            config = {"size": size, "width": width, "calibrate": calibrate, "devices": devices, "gamma": 4}
            for prompt, new in (([5], 20), (list(range(20, 31)), 33)):
                trace = cluster.run("easyspec", prompt, config=config, limits=Limits(new))
                assert_same(model, prompt, trace.token_ids(), generate(model, prompt, new))
                assert trace.parts


# Virtual time.


def say(path) -> int:
    return (int(path[-1]) * 7 + len(path)) % 500 + 10


def test_a_round_takes_the_hand_computed_time_on_its_devices():
    latency = Flat(1000, 250, sample_us=30, communicate_us=20, fuzzy_us=100)
    with scripted_cluster(say, say, latency) as cluster:
        trace = cluster.run("easyspec", [1, 2, 3], config={"gamma": 3, "size": 3}, limits=cluster.limits(12))
    assert [(r.drafted, r.accepted, r.emitted) for r in trace.rounds] == [(3, 3, 4)] * 3
    start = max(s.end for s in trace.spans if s.kind == "prefill")
    each = 250 + 2 * 100 + 1000 + 20 + 30
    assert [r.time - start for r in trace.rounds] == [1000 * each * i for i in (1, 2, 3)]
    first = [s for s in trace.spans if s.step == 1]
    lanes = {kind: [s.device for s in first if s.kind == kind] for kind in ("calibrate", "draft", "verify")}
    assert lanes == {
        "calibrate": ["gpu0", "gpu1", "gpu2"],
        "draft": ["gpu0", "gpu1", "gpu2"] * 2,
        "verify": ["gpu0", "gpu1"],
    }
    assert all(s.id - s.rank in {o.id for o in first if o.rank == 0} for s in first)
    fuzzy = {p.span for p in trace.parts}
    assert fuzzy == {s.id for s in trace.spans if s.kind == "draft"}
    spans = {s.id: s for s in trace.spans}
    for part in trace.parts:
        span = spans[part.span]
        half = (span.start + span.end) // 2
        around = (span.start, half) if part.kind == "attention" else (half, span.end)
        assert (part.start, part.end, part.layer) == (*around, 1 + span.rank * (part.kind == "attention"))
    figures = measure(trace)
    assert (figures.target_forwards, figures.draft_forwards, figures.wasted_device_seconds) == (3, 9, 0)


def test_calibration_reads_accepted_tokens_and_the_targets_own_again():
    wrong = lambda path: say(path) if len(path) % 3 else 5  # noqa: E731
    with scripted_cluster(say, wrong, Flat()) as cluster:
        trace = cluster.run("easyspec", [1, 2, 3], config={"gamma": 4, "size": 2}, limits=cluster.limits(14))
    rows = [s.rows for s in trace.spans if s.kind == "calibrate" and s.rank == 0]
    assert rows == [1, *(r.emitted for r in trace.rounds[:-1])][: len(rows)]
    assert len(set(rows)) > 1


@pytest.mark.parametrize("size", [1, 4])
def test_a_profiles_times_are_those_of_its_formula(size):
    with engine.open(runtime="virtual", profile="8xA100", profile_pair="llama-3-8-70-tp8") as cluster:
        trace = cluster.run(
            "easyspec", "Tell me a story.", config={"gamma": 4, "size": size}, limits=Limits(16)
        )
        latency = cluster.placement.site.latency
    drafts = [s for s in trace.spans if s.model == "drafter" and s.kind != "prefill"]
    for span in drafts:
        ordinary = latency("drafter", span.rows, span.context)
        shared = latency.parallel("drafter", span.rows, span.context, size)
        assert span.end - span.start == 1000 * (shared if span.kind == "draft" else ordinary)
        assert span.kind != "draft" or size == 1 or shared < ordinary
    by_span = {s.id: [p for p in trace.parts if p.span == s.id] for s in drafts}
    if size == 1:
        assert not trace.parts
        assert {s.device for s in trace.spans} == {"gpu0-7"}, "drafter and target take turns on all"
        return
    assert {s.device for s in trace.spans if s.model == "target"} == {f"gpu{i}" for i in range(8)}
    assert {s.device for s in drafts} == {f"gpu{i}" for i in range(4)}
    leaders = [s for s in drafts if s.kind == "draft" and s.rank == 0]
    for leader in leaders:
        shared = {
            (p.start, p.end)
            for rank in range(4)
            for p in by_span[leader.id + rank]
            if p.kind == "attention" and 4 <= p.layer < 8
        }
        assert len(shared) == 1, "the attention layers of a group run at the same time"
        assert all(leader.start <= p.start <= p.end <= leader.end for p in by_span[leader.id])
    assert {p.layer for p in trace.parts if p.kind == "attention"} == set(range(1, 31))


def test_a_profile_that_cannot_tell_drafts_on_one_device():
    with engine.open(runtime="virtual", profile="pearl-3xA100") as cluster:
        trace = cluster.run("easyspec", "Hi", limits=Limits(8))
        assert trace.header.config["devices"] == 1
        with pytest.raises(UsageError, match="devices is 2; it must be at least 0 and at most 1"):
            cluster.run("easyspec", "Hi", config={"devices": 2}, limits=Limits(8))
