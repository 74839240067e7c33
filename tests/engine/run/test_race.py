"""Work that is called off: results of a race, and logits that nobody can judge any more."""

from __future__ import annotations

import asyncio
import gc

import numpy as np

from specscope.engine.run.dispatch import Dispatcher
from specscope.engine.run.models import Model
from specscope.engine.run.run import Race
from specscope.engine.trace.emitter import TraceEmitter
from specscope.engine.types import Draft, Prefix
from specscope.engine.worker.jobs import Drop
from tests.engine.worker.harness import AnsweredWorker


def test_stopped_work_has_no_result_even_if_it_was_ready():
    ended: list[str] = []

    async def work(name: str, wait: float) -> str:
        try:
            await asyncio.sleep(wait)
            return name
        finally:
            ended.append(name)

    async def play() -> list[str]:
        taken: list[str] = []
        async with Race() as race:
            first, slow = race.start(work("first", 0)), race.start(work("slow", 60))
            race.start(work("second", 0.01))
            await first  # ready, but not taken
            race.stop(first)
            race.stop(slow)
            race.stop(None)
            async for results in race:
                taken += results
        return taken

    assert asyncio.run(play()) == ["second"]
    assert sorted(ended) == ["first", "second", "slow"]


class OneLane(AnsweredWorker):
    def lanes(self, model: str) -> int:
        return 1


def test_logits_are_dropped_when_their_forward_ends_and_not_before():
    async def drop_early() -> None:
        worker, rows = OneLane("worker"), []
        emitter = TraceEmitter(rows.append, str)
        dispatcher = Dispatcher(rows.append, emitter, origin=0, check=lambda: None)
        model = Model(dispatcher, worker, "target", "target", len)
        scores = model.score(Prefix(0, np.arange(3)), Draft.empty())
        del scores
        gc.collect()
        assert not [job for job in worker.jobs if isinstance(job, Drop)], "the logits do not exist yet"
        worker.answer()
        await asyncio.sleep(0)
        assert worker.jobs[1:] == [Drop(worker.jobs[0].scores)]

    asyncio.run(drop_early())
