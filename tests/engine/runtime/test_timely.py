"""What worker processes do at the same time, how soon they stop and what they leave: on a machine of their own."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

import engine
from engine.types import Limits
from tests.engine.runtime.processes import PROMPT, SPLIT, TWO, at_span, ranks, servers

pytestmark = pytest.mark.alone


@pytest.mark.parametrize(
    ("method", "config", "spans"),
    [("pearl", {}, 20), ("pearl", SPLIT, 40), ("easyspec", TWO, 40)],
    ids=("two devices", "stages", "ranks"),
)
def test_cancel_stops_both_devices_within_one_forward(cluster, method, config, spans):
    stop, at = threading.Event(), list[int]()

    def ask() -> None:
        at.append(time.perf_counter_ns())
        stop.set()

    began, config = time.perf_counter_ns(), {**config, "gamma": 32}
    trace = cluster.run(
        method, PROMPT, config=config, limits=Limits(2000), listener=at_span(spans, ask), cancel=stop
    )
    assert trace.status == "cancelled"
    asked = at[0] - began
    # 20 ms to notice, then at most the forward under way; a chunk of 32 drafts alone would take longer
    late = [s for s in trace.spans if s.start > asked + 60_000_000]
    assert not late
    if method == "easyspec":
        drafts = [s.rank for s in trace.spans if s.kind in ("calibrate", "draft")]
        assert drafts.count(0) == drafts.count(1), "both stop after the same forward"


def test_attention_of_a_group_runs_on_different_devices_at_the_same_time(cluster):
    shares = list[float]()
    while len(shares) < 4 and max(shares, default=0) <= 1 / 4:  # other programs can only part them
        trace = cluster.run("easyspec", PROMPT, config={"gamma": 8, **TWO}, limits=Limits(160))
        shares.append(overlapping(trace))
        assert {s.kind for s in trace.spans if s.rank == 1} == {"prefill", "calibrate", "draft"}
    assert shares[-1] > 1 / 4, f"on an idle machine more than half do; here {shares}"


def overlapping(trace):
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


def test_nothing_is_left_behind():
    with engine.open(device="cpu") as cluster:
        pids = [worker.pid for worker in (*servers(cluster).values(), *ranks(cluster))]
        left = [os.readlink(handle) for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink()]
        assert not [name for name in left if "specscope" in name], "only those who mapped the memory have it"
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
