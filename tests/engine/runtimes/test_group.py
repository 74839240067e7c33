"""Worker processes that work together: groups that draft, and targets in stages."""

import asyncio
import threading
from collections import Counter

import pytest

from specscope.engine.errors import SpecScopeError, WorkerDied
from specscope.engine.layout import Packing
from specscope.engine.runtimes.ensemble import pipeline_of
from specscope.engine.types import Draft, Limits, Prefix, Sampling
from specscope.engine.worker.jobs import Begin, Drop, Judge, Prefill, Reply, Score, Stamp
from tests.engine.runtimes.processes import PROMPT, SPLIT, TWO, at_span, ranks, stages
from tests.engine.worker.harness import AnsweredWorker


@pytest.mark.parametrize(
    ("sampling", "config"),
    [(Sampling(), {}), (Sampling(0.9, seed=5), {"width": 4}), (Sampling(0.9, seed=5), {"calibrate": False})],
    ids=str,
)
def test_two_devices_write_the_rows_of_one(cluster, sampling, config):
    def rows(devices):
        settings = {"gamma": 4, "devices": devices, **config}
        trace = cluster.run("easyspec", PROMPT, config=settings, sampling=sampling, limits=Limits(24))
        decided = [(d.position, d.token, d.p, d.q, d.u, d.outcome) for d in trace.decisions]
        return decided, [(r.drafted, r.accepted, r.emitted) for r in trace.rounds], trace.token_ids()

    assert rows(2) == rows(1)


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
        more = {"limits": Limits(2000), "listener": at_span(1, later.start), "cancel": stop}
        trace = cluster.run(method, PROMPT, config={**config, "gamma": 32}, **more)
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


def overlaps(trace):
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


def test_stages_run_one_after_the_other_each_on_its_device(cluster):
    trace = cluster.run("pearl", PROMPT, config=SPLIT, limits=Limits(40))
    first, last = (worker.devices[0].name for worker in stages(cluster))
    forwards = [s for s in trace.spans if s.kind in ("verify", "pre-verify")]
    for one, two in zip(forwards[::2], forwards[1::2], strict=True):
        assert (one.device, two.device) == (first, last)
        assert (two.id, two.rank, two.rows) == (one.id + 1, 1, one.rows)
        assert one.end <= two.start
    assert {s.device for s in trace.spans if s.kind == "sample"} == {last}
    moves = [s for s in trace.spans if s.kind == "communicate"]
    assert {s.device for s in moves} == {first, last}, "rows leave the first device for the last"
    assert [d.role for d in trace.header.devices] == ["drafter+target"] * 2


def test_other_methods_and_placements_run_on_the_same_workers_in_between(cluster):
    before = [worker.pid for worker in (*stages(cluster), *ranks(cluster))]
    between = [("pearl", {"gamma": 3}), ("pearl", {"placement": "co-located"}), ("dsi", {}), ("tree", {})]
    runs = [("pearl", SPLIT), ("easyspec", TWO), *between, ("easyspec", TWO), ("pearl", SPLIT)]
    assert len({cluster.run(m, PROMPT, config=c, limits=Limits(24)).text for m, c in runs}) == 1
    assert [worker.pid for worker in (*stages(cluster), *ranks(cluster))] == before


@pytest.mark.parametrize(
    ("method", "config", "at"),
    [("pearl", SPLIT, (5, 14, 23)), ("easyspec", {"gamma": 16, **TWO}, (7, 31))],
    ids=("stages", "ranks"),
)
def test_after_a_stopped_run_all_members_cache_the_same_rows(cluster, method, config, at):
    plain = cluster.run("autoregressive", PROMPT, limits=Limits(24)).text
    for spans in at:
        stop = threading.Event()
        more = {"limits": Limits(2000), "listener": at_span(spans, stop.set), "cancel": stop}
        assert cluster.run(method, PROMPT, config=config, **more).status == "cancelled"
        assert cluster.run(method, PROMPT, config=config, limits=Limits(24)).text == plain


PREFIX = Prefix(0, None)  # type: ignore[arg-type]
BEGIN = Begin(Sampling(), 1, 8, 8, Packing())


async def _step():
    for _ in range(5):
        await asyncio.sleep(0)


def on_two_stages(test):
    """Let a test have a pipeline that has begun, and its two stages."""

    async def work():
        one, two = AnsweredWorker("one"), AnsweredWorker("two")
        worker = pipeline_of([one, two])  # type: ignore[list-item]
        ticket = worker.submit(BEGIN)
        await _step()
        one.answer()
        two.answer()
        await ticket.reply
        await test(worker, one, two)

    return lambda: asyncio.run(work())


@on_two_stages
async def test_states_pass_from_stage_to_stage_and_the_judge_follows_the_last(worker, one, two):
    """An error fails a forward and its judge."""

    def submit(number):
        job, judge = Score("target", (PREFIX,), (((), ()),), number), Judge(number, Draft.empty(), True, 0)
        return worker.submit(job), worker.submit(judge)

    scoring, judging = submit(7)
    await _step()
    assert [type(job) for job in one.jobs] == [Begin, Score]
    assert one.jobs[1].stage == (0, 2, b"")
    assert len(two.jobs) == 1, "the forward and the judge wait for the first stage"
    one.answer(b"states")
    await _step()
    assert [type(job) for job in two.jobs] == [Begin, Score, Judge]
    assert two.jobs[1].stage == (1, 2, b"states")
    two.replies[1].set_result(Reply(None, (Stamp("verify", 0, 1, 1, 0),)))
    two.replies[2].set_result(Reply("verdict", (Stamp("sample", 0, 1, 1, 0),)))
    assert [(s.lane, s.alone) for s in (await scoring.reply).stamps] == [(0, False), (1, False)]
    judged = await judging.reply
    assert (judged.value, [(s.lane, s.alone) for s in judged.stamps]) == ("verdict", [(1, True)])
    count, tickets = len(two.jobs), submit(8)
    await _step()
    one.replies[-1].set_exception(WorkerDied("gone"))
    for ticket in tickets:
        with pytest.raises(SpecScopeError, match="gone"):
            await ticket.reply
    assert len(two.jobs) == count


@on_two_stages
async def test_forwards_wait_for_each_other_and_one_stopped_before_its_start_is_skipped(worker, one, two):
    first, second, third = (worker.submit(Prefill("target", (PREFIX,))) for _ in range(3))
    await _step()
    assert len(one.jobs) == 2
    first.stop()  # it has started: all stages must cache its rows
    second.stop()
    one.answer(b"x")
    await _step()
    assert len(one.jobs) == 2
    two.answer()
    await _step()
    assert (await second.reply) == Reply((), ())
    assert len((await first.reply).stamps) == 2
    assert len(one.jobs) == 3
    one.answer(b"y")
    await _step()
    two.answer()
    await third.reply


@on_two_stages
async def test_scores_are_dropped_on_all_stages_once_they_are_computed(worker, one, two):
    scoring = worker.submit(Score("target", (PREFIX,), (((), ()),), 7))
    worker.submit(Drop(7))
    await _step()
    assert Drop not in map(type, one.jobs)
    one.answer(b"x")
    await _step()
    two.answer()
    await scoring.reply
    await _step()
    assert isinstance(one.jobs[-1], Drop)
    assert isinstance(two.jobs[-1], Drop)
