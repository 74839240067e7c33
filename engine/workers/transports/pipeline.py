"""A pipeline: the target's layers are split into stages, and a forward passes the stages in order.

Source: PEARL (ICLR 2025), appendix G. A device computes a forward only during its own stage; in
between it runs the drafter, whose jobs share its queue. All workers get the same jobs in the same
order, so all cache KV rows of the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from engine.workers.jobs import Begin, Drop, Job, Judge, Measure, Prefill, Preparation, Score, Stage
from engine.workers.replies import Reply, Stamp
from engine.workers.worker import Ticket, Worker


class PipelineWorker:
    """Workers with the stages of one model that work as one. The last has the logits, and judges.

    Args:
        members: The workers, in order of their stages. Their owner closes them.
    """

    def __init__(self, members: Sequence[Worker]) -> None:
        self.name = members[-1].name
        self.members = tuple(members)
        self.devices = tuple(device for member in members for device in member.devices)
        self._turn = asyncio.Lock()
        self._scoring: dict[int, tuple[asyncio.Future[None], asyncio.Future[Reply]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ended(self) -> bool:
        """Whether a member has ended."""
        return any(member.ended for member in self.members)

    def lanes(self, model: str) -> int:  # noqa: ARG002 - it has one model
        """Return the number of stages."""
        return len(self.devices)

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        """Start a job on all members between runs; return a function that waits for all replies."""
        waits = [member.prepare(job) for member in self.members]
        return lambda: [wait() for wait in waits][-1]

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: the placement attaches the members."""

    def detach(self) -> None:
        """Do nothing: the placement detaches the members."""

    def kill(self, why: str) -> None:
        """End all members."""
        for member in self.members:
            member.kill(why)

    def close(self) -> None:
        """Do nothing: the placement closes the members."""

    def submit(self, job: Job) -> Ticket:
        """Start a job.

        A forward waits for the one before it. Once started, it passes all stages, also if stopped.
        """
        if isinstance(job, Drop):
            return self._drop(job)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()
        stopped = asyncio.Event()
        if isinstance(job, Prefill | Score):
            reached: asyncio.Future[None] = loop.create_future()
            if isinstance(job, Score):
                self._scoring[job.scores] = reached, reply
            self._start(self._pass_stages(job, stopped, reached), reply)
        elif isinstance(job, Judge):
            self._start(self._judge(job), reply)
        elif isinstance(job, Measure):
            self._start(self._measure(job, stopped), reply)
        else:
            if isinstance(job, Begin):
                self._turn, self._scoring = asyncio.Lock(), {}
            self._start(self._on_all(job), reply)
        return Ticket(reply, stopped.set)

    def _start(self, work: Coroutine[Any, Any, Reply], reply: asyncio.Future[Reply]) -> None:
        async def finish() -> None:
            try:
                value = await work
            except Exception as error:  # noqa: BLE001 - raised where the reply is awaited
                if not reply.done():
                    reply.set_exception(error)
            else:
                if not reply.done():
                    reply.set_result(value)

        task = asyncio.get_running_loop().create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_stages(
        self, job: Prefill | Score, stopped: asyncio.Event, reached: asyncio.Future[None]
    ) -> Reply:
        """Run a forward through the stages; `reached` is done when the last stage has its job."""
        count, states, stamps, reply = len(self.members), b"", list[Stamp](), Reply(None, ())
        try:
            async with self._turn:
                if stopped.is_set():
                    return Reply((), ())
                for number, member in enumerate(self.members):
                    stage_job = replace(job, stage=Stage(number, count, states))
                    last = number == count - 1
                    if isinstance(stage_job, Score) and not last:
                        stage_job = replace(stage_job, judges=())
                    ticket = member.submit(stage_job)
                    if last:
                        reached.set_result(None)
                    reply = await ticket.reply
                    stamps += _on_lane(reply, number)
                    states = reply.value or b""
        finally:
            if not reached.done():
                reached.set_result(None)
        return Reply(reply.value, tuple(stamps))

    async def _judge(self, job: Judge) -> Reply:
        """Judge on the last member; the job is sent while its stage still runs."""
        reached, scored = self._scoring[job.scores]
        await reached
        if scored.done():
            scored.result()  # raises the error of an earlier stage: there are no scores
        last = len(self.members) - 1
        reply = await self.members[last].submit(job).reply
        return Reply(reply.value, tuple(_on_lane(reply, last)))

    async def _measure(self, job: Measure, stopped: asyncio.Event) -> Reply:
        """Time one stage after the other; a forward takes the sum of its stages."""
        count, sums = len(self.members), (0.0,) * len(job.rows)
        async with self._turn:
            for number, member in enumerate(self.members):
                if stopped.is_set():
                    return Reply((), ())
                staged = replace(job, stage=Stage(number, count), seconds=job.seconds / count)
                value = (await member.submit(staged).reply).value
                sums = tuple(a + b for a, b in zip(sums, value, strict=False))
        return Reply(sums, ())

    def _drop(self, job: Drop) -> Ticket:
        """Drop the scores on all members once they are computed."""
        _, scored = self._scoring.pop(job.scores)

        def drop(_: object) -> None:
            for member in self.members:
                member.submit(job)

        scored.add_done_callback(drop)
        return Ticket(scored, lambda: None)

    async def _on_all(self, job: Job) -> Reply:
        replies = await asyncio.gather(*(member.submit(job).reply for member in self.members))
        return replies[-1]


def _on_lane(reply: Reply, number: int) -> Iterator[Stamp]:
    """Yield a stage's stamps with its lane; judging is not a part of the split forward."""
    for stamp in reply.stamps:
        yield stamp._replace(lane=number, alone=stamp.kind in ("sample", "communicate"))
