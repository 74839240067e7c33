"""Virtual time: exact durations, the order of events, shared devices, and deadlocks."""

import asyncio
from dataclasses import replace

import pytest

from specscope.engine.errors import Deadlock
from specscope.engine.methods.registry import METHODS
from specscope.engine.runtimes.virtual import Processor, VirtualLoop
from specscope.engine.types import Limits
from tests.engine.worker.harness import Flat, scripted_cluster

LATENCY = Flat(target_us=1000, drafter_us=250, sample_us=7, communicate_us=3)
NEXT = {"agrees": lambda p: (int(p[-1]) * 7 + 3) % 50 + 10, "never": lambda _: 5}
PROMPT = [1, 2, 3]
PREFILL_US = 1000  # both models at once


def _run(method, drafter, new, **config):
    with scripted_cluster(NEXT["agrees"], NEXT[drafter], LATENCY) as cluster:
        return cluster.run(method, PROMPT, config=config, limits=cluster.limits(new))


ROUND = 1000 + 3 + 7
"""Microseconds of a verification, with the draft's way to its judge and the judgement."""


@pytest.mark.parametrize(
    ("method", "drafter", "new", "config", "emitted", "us"),
    [
        ("autoregressive", "agrees", 12, {}, [1] * 12, 12 * 1000),
        ("speculative", "agrees", 12, {"gamma": 3}, [4] * 3, 3 * (3 * 250 + ROUND)),
        # No draft is longer than the rest of the output.
        ("speculative", "never", 4, {"gamma": 3}, [1] * 4, sum(n * 250 + ROUND for n in (3, 3, 2, 1))),
        # gamma = c = 4: each round drafts 4 x 250 beside a forward of 1000.
        ("pearl", "agrees", 21, {"gamma": 4}, [1, 4, 4, 4, 4, 4], 6 * ROUND),
        # gamma = 6: the target waits for the drafter.
        ("pearl", "agrees", 7, {"gamma": 6}, [1, 6], 6 * 250 + 3 + 7 + ROUND),
    ],
)
def test_a_run_takes_the_hand_computed_time(method, drafter, new, config, emitted, us):
    trace = _run(method, drafter, new, **config)
    assert [r.emitted for r in trace.rounds] == emitted
    assert trace.commits[-1].time == 1000 * (PREFILL_US + us)
    again = _run(method, drafter, new, **config)
    assert (list(again.rows()), again.footer) == (list(trace.rows()), trace.footer)


def test_pearl_with_both_strategies_off_is_speculative_row_for_row():
    plain = _run("speculative", "agrees", 20, gamma=3)
    ablated = _run("pearl", "agrees", 20, gamma=3, pre_verify=False, post_verify=False)
    assert (ablated.rounds, ablated.decisions, ablated.spans) == (plain.rounds, plain.decisions, plain.spans)


def in_virtual_time(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


def test_actions_due_at_the_same_time_happen_in_order_of_their_requests():
    order = list[int]()

    async def wait(loop, i):
        await loop.until(50)
        order.append(i)

    async def main():
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            for i in range(20):
                tasks.create_task(wait(loop, i))
        assert loop.clock.now == 50
        await asyncio.sleep(3600)  # in no real time
        return loop.time()

    assert in_virtual_time(main) == pytest.approx(3600, abs=1e-3)
    assert order == list(range(20))


def test_a_deadlock_is_an_error():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="every task waits"):
        in_virtual_time(main)


def test_a_cancelled_job_holds_its_device_until_its_forward_ends(monkeypatch):
    """The method continues at once; the span is cancelled; the next job waits for its end."""

    async def decode(run, cfg):
        task = asyncio.ensure_future(run.drafter.propose(run.x, 4))
        loop = asyncio.get_running_loop()
        await loop.until(loop.clock.now + 300)  # in the middle of the second forward
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert loop.clock.now == PREFILL_US + 300
        draft = await run.drafter.propose(run.x, 1)
        run.commit(await run.target.verify(run.x, draft))

    monkeypatch.setitem(METHODS, "speculative", replace(METHODS["speculative"], decode=decode))
    trace = _run("speculative", "agrees", 2)
    drafts = {(s.outcome, s.start // 1000, s.end // 1000) for s in trace.spans if s.kind == "draft"}
    t = PREFILL_US
    assert drafts == {
        ("cancelled", t, t + 250),
        ("cancelled", t + 250, t + 500),
        ("done", t + 500, t + 750),
    }


def ends(pieces):
    """Return the end of each (start, microseconds) forward on one device."""
    processor, done = Processor(), dict[int, int]()

    async def one(i, start, us):
        loop = asyncio.get_running_loop()
        await loop.until(start)
        await processor.work(loop.clock, us)
        done[i] = loop.clock.now

    async def everything():
        for task in [asyncio.ensure_future(one(i, *piece)) for i, piece in enumerate(pieces)]:
            await task

    in_virtual_time(everything)
    return [done[i] for i in range(len(pieces))]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(0, 100)], [100]),
        ([(0, 100), (0, 100)], [200, 200]),
        ([(0, 100), (0, 300)], [200, 400]),
        ([(0, 100), (50, 100)], [150, 200]),
        ([(0, 10), (0, 10), (0, 10)], [30, 30, 30]),
        ([(0, 100), (100, 100)], [100, 200]),
    ],
)
def test_equal_shares(pieces, expected):
    assert ends(pieces) == expected


def test_pearl_on_one_device_takes_the_time_of_both_one_after_the_other():
    # 4 drafts of 250 during a forward of 1000 take 1000 on two devices and 2000 on one.
    with scripted_cluster(NEXT["agrees"], NEXT["agrees"], Flat(1000, 250)) as cluster:
        apart, shared = (
            cluster.run("pearl", PROMPT, config={"gamma": 4, "placement": placement}, limits=Limits(21))
            for placement in ("separate", "co-located")
        )
    assert shared.token_ids() == apart.token_ids()
    assert [(r.mode, r.emitted) for r in shared.rounds] == [(r.mode, r.emitted) for r in apart.rounds]
    prefill = (1000, 1250)  # both models at once: 1000 apart; 250 at half speed, then the rest, on one device
    assert apart.commits[-1].time == 1000 * (prefill[0] + 6 * 1000)
    # the last round has room for one draft only
    assert shared.commits[-1].time == 1000 * (prefill[1] + 5 * 2000 + 1250)
    assert {d.role for d in shared.header.devices} == {"drafter+target"}
