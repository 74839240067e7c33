"""Logits of a forward stay on the worker until nobody can judge them any more."""

import asyncio
import gc

import numpy as np

from specscope.engine.run.dispatch import Dispatcher
from specscope.engine.run.models import Model
from specscope.engine.trace.emitter import TraceEmitter
from specscope.engine.types import Draft, Prefix
from specscope.engine.worker.jobs import Drop, Job, Reply
from specscope.engine.worker.worker import Ticket


class SlowWorker:
    """A worker that replies when the test says so."""

    name, devices = "worker", ()

    def __init__(self):
        self.jobs = list[Job]()
        self.replies = list[asyncio.Future[Reply]]()

    def lanes(self, model: str) -> int:
        return 1

    def submit(self, job: Job) -> Ticket:
        self.jobs.append(job)
        self.replies.append(asyncio.get_running_loop().create_future())
        return Ticket(self.replies[-1], lambda: None)


def test_logits_are_dropped_when_their_forward_ends_and_not_before():
    async def drop_early() -> None:
        worker, rows = SlowWorker(), []
        emitter = TraceEmitter(rows.append, str)
        dispatcher = Dispatcher(rows.append, emitter, origin=0, check=lambda: None)
        scores = Model(dispatcher, worker, "target", "target", len).score(
            Prefix(0, np.arange(3)), Draft.empty()
        )
        del scores
        gc.collect()
        assert not [job for job in worker.jobs if isinstance(job, Drop)], "the logits do not exist yet"
        worker.replies[0].set_result(Reply(None, ()))
        await asyncio.sleep(0)
        assert worker.jobs[1:] == [Drop(worker.jobs[0].scores)]

    asyncio.run(drop_early())
