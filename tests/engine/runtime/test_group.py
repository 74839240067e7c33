"""Worker processes that draft together: their layers overlap, and what happens when one of them dies or all are stopped."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import engine
from engine.errors import UsageError, WorkerDied
from engine.runtime.events import Footer, Span
from engine.runtime.group import GroupWorker
from engine.types import Layout, Limits, Sampling

pytestmark = pytest.mark.alone

PROMPT = "Tell me a story about a lighthouse."
TWO = {"devices": 2, "size": 2}


def _members(cluster):
    (group,) = cluster.placement.crew(Layout(ranks=2, turns=True)).workers["drafter"]
    assert isinstance(group, GroupWorker)
    return group.members


@pytest.fixture(scope="module")
def cluster():
    with engine.open(device="cpu") as opened:
        yield opened


def test_attention_of_a_group_runs_on_different_devices_at_the_same_time(cluster):
    shares = list[float]()
    while len(shares) < 4 and max(shares, default=0) <= 1 / 4:  # other programs can only part them
        trace = cluster.run("easyspec", PROMPT, config={"gamma": 8, **TWO}, limits=Limits(160))
        shares.append(_overlapping(trace))
        assert {s.kind for s in trace.spans if s.rank == 1} == {"prefill", "calibrate", "draft"}
    assert shares[-1] > 1 / 4, f"on an idle machine more than half do; here {shares}"


def _overlapping(trace):
    """Return the share of fuzzy forwards whose two attention layers run at the same time, each on its device."""
    spans = {s.id: s for s in trace.spans}
    leaders = [s for s in trace.spans if s.kind == "draft" and s.rank == 0]
    assert len(leaders) > 50
    overlaps = 0
    for leader in leaders:
        parts = [p for p in trace.parts if p.span in (leader.id, leader.id + 1)]
        attention = [p for p in parts if p.kind == "attention"]
        assert [p.layer for p in attention] == [1, 2]
        assert [p.layer for p in parts if p.kind == "exchange"] == [1, 1]
        one, two = (spans[p.span] for p in attention)
        assert one.device != two.device
        assert {one.device, two.device} == {device.name for device in trace.header.devices}
        assert all(spans[p.span].start <= p.start <= p.end <= spans[p.span].end for p in parts)
        a, b = attention
        overlaps += max(a.start, b.start) < min(a.end, b.end)
    return overlaps / len(leaders)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, seed=5)])
@pytest.mark.parametrize("config", [{}, {"width": 4}, {"calibrate": False}], ids=str)
def test_two_devices_leave_the_rows_of_one(cluster, sampling, config):
    def rows(devices: int):
        config_ = {"gamma": 4, "devices": devices, **config}
        trace = cluster.run("easyspec", PROMPT, config=config_, sampling=sampling, limits=Limits(48))
        decided = [(d.position, d.token, d.p, d.q, d.u, d.outcome) for d in trace.decisions]
        return decided, [(r.drafted, r.accepted, r.emitted) for r in trace.rounds], trace.token_ids()

    assert rows(2) == rows(1)


def test_other_methods_run_on_the_same_workers_in_between(cluster):
    before = [w.pid for w in _members(cluster)]
    texts = [
        cluster.run(method, PROMPT, config=config, limits=Limits(24)).text
        for method, config in (("easyspec", TWO), ("pearl", {"gamma": 3}), ("easyspec", TWO), ("tree", {}))
    ]
    assert len(set(texts)) == 1
    assert [w.pid for w in _members(cluster)] == before


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_run_with_an_error_that_names_it(rank):
    events: list[object] = []
    with engine.open(device="cpu") as cluster:
        member = _members(cluster)[rank]

        def listen(event: object) -> None:
            events.append(event)
            if isinstance(event, Span) and sum(isinstance(e, Span) for e in events) == 30:
                os.kill(member.pid, signal.SIGKILL)

        start = time.perf_counter()
        named = rf"CPU core \d+ \(process {member.pid}\) was killed by SIGKILL"
        with pytest.raises(WorkerDied, match=named):
            cluster.run("easyspec", PROMPT, config=TWO, limits=Limits(2000), listener=listen)
        assert time.perf_counter() - start < 10
        assert isinstance(events[-1], Footer)
        assert events[-1].status == "failed"
        assert "SIGKILL" in events[-1].error
    with engine.open(device="cpu") as cluster:
        assert cluster.run("easyspec", PROMPT, config=TWO, limits=Limits(4)).status == "done"


def test_a_run_after_a_stopped_one_is_not_confused_by_its_turns(cluster):
    for spans in (7, 12, 31):
        stop, seen = threading.Event(), [0]

        def listen(event: object, stop=stop, seen=seen, spans=spans) -> None:
            seen[0] += isinstance(event, Span)
            if seen[0] == spans:
                stop.set()

        config = {"gamma": 16, **TWO}
        stopped = cluster.run(
            "easyspec", PROMPT, config=config, limits=Limits(2000), listener=listen, cancel=stop
        )
        assert stopped.status == "cancelled"
        plain = cluster.run("autoregressive", PROMPT, limits=Limits(24))
        assert cluster.run("easyspec", PROMPT, config=config, limits=Limits(24)).text == plain.text


def test_cancel_stops_both_devices_within_one_forward(cluster):
    stop, spans, at = threading.Event(), [], []

    def listen(event: object) -> None:
        if isinstance(event, Span):
            spans.append(event)
            if len(spans) == 40:
                at.append(time.perf_counter_ns())
                stop.set()

    began = time.perf_counter_ns()
    config = {"gamma": 32, **TWO}
    trace = cluster.run("easyspec", PROMPT, config=config, limits=Limits(2000), listener=listen, cancel=stop)
    assert trace.status == "cancelled"
    asked = at[0] - began
    late = [s for s in trace.spans if s.start > asked + 60_000_000]  # 20 ms to notice, then one forward each
    assert not late
    ranks = [sum(s.rank == rank and s.kind in ("calibrate", "draft") for s in trace.spans) for rank in (0, 1)]
    assert ranks[0] == ranks[1], "both stop after the same forward"


def test_more_devices_than_there_are_is_refused(cluster, monkeypatch):
    site = cluster.placement.site
    monkeypatch.setattr(cluster.placement, "site", replace(site, devices=site.devices[:2]))
    with pytest.raises(UsageError, match="devices is 4; it must be at least 0 and at most 2"):
        cluster.run("easyspec", PROMPT, config={"devices": 4}, limits=Limits(4))


def test_the_exchange_leaves_no_file_behind():
    before = set(Path("/dev/shm").glob("specscope-*"))
    with engine.open(device="cpu") as cluster:
        _members(cluster)
        assert set(Path("/dev/shm").glob("specscope-*")) == before
