"""EasySpec as a method: rounds against a reference, settings, real models, virtual times."""

from __future__ import annotations

from dataclasses import replace

import pytest

import specscope
from specscope.engine.drafting.tree import Wide
from specscope.engine.errors import UsageError
from specscope.engine.methods import find
from specscope.engine.sampling.draws import Draws, process_logits
from specscope.engine.types import Draft, Limits
from specscope.traces.metrics import measure
from tests.engine.methods.lossless import assert_same, generate
from tests.engine.methods.pairs import make_pair
from tests.engine.model import tiny
from tests.engine.reference import Reference, Round
from tests.engine.test_joint_errors import BIASED, EXACT, ONE
from tests.engine.test_reference import SAMPLINGS, rounds_of
from tests.engine.toy import PROMPT, Blurred, Table, ToyRun
from tests.engine.toy_joint import distance, joint, target_joint
from tests.engine.worker.harness import Flat, scripted_cluster

LAYERS = 9


# The method, against tables and slow references.


def reference(exact: Reference, fuzzy: Reference, x: list[int], gamma: int, calibrate: bool, end: int):
    """Return the rounds of a decoder without a cache: first draft exact, later ones fuzzy."""
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
def test_every_round_equals_the_references(calibrate, sampling):
    lengths = set()
    for seed in range(4):
        p, q = Table(seed, 6, sharpness=1.5), Blurred(seed, 6)
        run = ToyRun(p, q, Draws(seed, 0), sampling, 40)
        rounds = rounds_of("easyspec", {"gamma": 3, "calibrate": calibrate}, run)
        sides = (Reference(p, table, sampling, Draws(seed, 0), True) for table in (q, q.fuzzy))
        assert rounds == reference(*sides, list(PROMPT), 3, calibrate, len(PROMPT) + 40)
        lengths |= {r.accepted for r in rounds}
    assert len(lengths) > 1, "rejections and acceptances both occur"


def test_judging_a_fuzzy_draft_by_the_exact_q_is_detected():
    p, q = Table(21, 3), Blurred(22, 3)

    async def wrong(run: ToyRun) -> None:
        while not run.done:
            draft = await run.drafter.grow(run.x, Wide(1, 2), fuzzy=4)
            context = [*run.x.tokens.tolist(), *draft.ids[:1]]
            exact = run.keep(process_logits(q(context)[None], run.sampling)[0])
            tokens = [replace(t, q=exact) if i == 1 else t for i, t in enumerate(draft.tokens)]
            run.commit(await run.target.verify(run.x, Draft(tuple(tokens))))

    method = find("easyspec")
    right = lambda run: method.decode(run, method.configure({"gamma": 2}))  # noqa: E731
    assert distance(joint(wrong, p, q, ONE), target_joint(p, ONE)) > BIASED
    assert distance(joint(right, p, q, ONE), target_joint(p, ONE)) < EXACT


# Real models.


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("family", ["llama3-rope", "mistral-window"])
def test_text_of_deep_models_equals_the_targets(tmp_path, family, devices):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny._SIZES, "num_hidden_layers", LAYERS)
        pair, model = make_pair(tmp_path, family, "other")
    with specscope.open(pair, runtime="local-thread", device="cpu") as cluster:
        for size, width, calibrate in ((4, 1, False), (5, 4, True)):
            config = {"size": size, "width": width, "calibrate": calibrate, "devices": devices, "gamma": 4}
            for prompt, new in (([5], 9), (list(range(20, 31)), 20)):
                trace = cluster.run("easyspec", prompt, config=config, limits=Limits(new))
                assert_same(model, prompt, trace.token_ids(), generate(model, prompt, new))
                assert trace.parts


# Virtual time.


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
    assert all(s.id - s.rank in {o.id for o in first if o.rank == 0} for s in first)
    fuzzy = {p.span for p in trace.parts}
    assert fuzzy == {s.id for s in trace.spans if s.kind == "draft"}
    spans = {s.id: s for s in trace.spans}
    for part in trace.parts:
        span = spans[part.span]
        middle = (span.start + span.end) // 2
        times = (span.start, middle) if part.kind == "attention" else (middle, span.end)
        assert (part.start, part.end, part.layer) == (*times, 1 + span.rank * (part.kind == "attention"))
    figures = measure(trace)
    assert (figures.target_forwards, figures.draft_forwards, figures.wasted_device_seconds) == (3, 9, 0)


def test_calibration_forwards_accepted_tokens_and_the_targets_own_again():
    wrong = lambda path: next_token(path) if len(path) % 3 else 5  # noqa: E731
    with scripted_cluster(next_token, wrong, Flat()) as cluster:
        trace = cluster.run("easyspec", [1, 2, 3], config={"gamma": 4, "size": 2}, limits=cluster.limits(14))
    rows = [s.rows for s in trace.spans if s.kind == "calibrate" and s.rank == 0]
    assert rows == [1, *(r.emitted for r in trace.rounds[:-1])][: len(rows)]
    assert len(set(rows)) > 1


@pytest.mark.parametrize("size", [1, 4])
def test_times_of_a_profile_follow_its_formula(size):
    with specscope.open(runtime="virtual", profile="8xA100", profile_pair="llama-3-8-70-tp8") as cluster:
        trace = cluster.run(
            "easyspec", "Tell me a story.", config={"gamma": 4, "size": size}, limits=Limits(16)
        )
        latency = cluster.placement.pool.latency
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


def test_a_profile_without_collective_times_drafts_on_one_device():
    with specscope.open(runtime="virtual", profile="pearl-3xA100") as cluster:
        trace = cluster.run("easyspec", "Hi", limits=Limits(8))
        assert trace.header.config["devices"] == 1
        with pytest.raises(UsageError, match="devices is 2; it must be at least 0 and at most 1"):
            cluster.run("easyspec", "Hi", config={"devices": 2}, limits=Limits(8))
