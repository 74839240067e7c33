"""EasySpec in virtual time: rounds, devices, calibration, the formula of its profile."""

from __future__ import annotations

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.engine.types import Limits
from specscope.traces.metrics import measure
from tests.engine.worker.harness import Flat, scripted_cluster


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
