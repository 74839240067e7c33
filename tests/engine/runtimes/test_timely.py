"""Worker processes: a stop inside a draft, and attention at the same time."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from specscope.engine.types import Limits
from tests.engine.runtimes.processes import PROMPT, SPLIT, TWO, at_span

ATTEMPTS = 20
"""Runs to try: on a busy machine the run's side may be too late in one of them."""


@pytest.mark.parametrize(
    ("method", "config"),
    [("pearl", {}), ("pearl", SPLIT), ("easyspec", TWO)],
    ids=("two devices", "stages", "ranks"),
)
def test_cancel_stops_both_devices_inside_a_draft(cluster, method, config):
    """A draft of 32 tokens is a job of 31 or 32 forwards; a finished job would have all of them."""
    for attempt in range(ATTEMPTS):
        stop = threading.Event()
        later = threading.Timer(0.01 * attempt, stop.set)
        trace = cluster.run(
            method,
            PROMPT,
            config={**config, "gamma": 32},
            limits=Limits(2000),
            listener=at_span(1, later.start),
            cancel=stop,
        )
        later.join()
        assert trace.status == "cancelled"
        if method == "easyspec":
            drafts = [s.rank for s in trace.spans if s.kind in ("calibrate", "draft")]
            assert drafts.count(0) == drafts.count(1), "both stop after the same forward"
        forwards = Counter(s.step for s in trace.spans if s.kind == "draft" and not s.rank)
        if 1 < forwards[max(forwards, default=0)] < 31:
            return
    raise AssertionError("no draft was stopped before its end")


def test_attention_of_a_group_runs_on_different_devices_at_the_same_time(cluster):
    for _ in range(ATTEMPTS):
        trace = cluster.run("easyspec", PROMPT, config={"gamma": 8, **TWO}, limits=Limits(48))
        assert {s.kind for s in trace.spans if s.rank == 1} == {"prefill", "calibrate", "draft"}
        if overlaps(trace):
            return
    raise AssertionError("one device's attention always waited for the other's")


def overlaps(trace) -> int:
    """Check the parts of every fuzzy forward; return how many ran both attention layers at once."""
    spans = {s.id: s for s in trace.spans}
    leaders = [s for s in trace.spans if s.kind == "draft" and s.rank == 0]
    assert len(leaders) > 10
    overlapping = 0
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
        assert all(max(a.end, b.end) <= p.end for p in parts if p.kind == "exchange"), "it waits for both"
        overlapping += max(a.start, b.start) < min(a.end, b.end)
    return overlapping


def test_the_target_takes_longer_than_the_drafter(cluster):
    assert cluster.c > 1
