"""A target that is split by its layers over several workers: a forward passes through them, one after the other.

PEARL (ICLR 2025), appendix G. A device works on a forward only in its own stage; in the others it is free for the drafter, whose
jobs stand in the same queue. Every worker gets the same jobs in the same order, so all hold KV rows of the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from engine.workers.jobs import (
    Begin,
    Connect,
    Drop,
    Job,
    Join,
    Judge,
    Load,
    Prefill,
    Reply,
    Score,
    Stage,
    Stamp,
)
from engine.workers.worker import Ticket, Worker


class PipelineWorker:
    """Several workers, each with a stage of one model, that work as one. The last one judges: the logits are there.

    Args:
        members: The workers, in order of their stages. Whoever started them closes them.
    """

    def __init__(self, members: Sequence[Worker]) -> None:
        self.name = members[-1].name
        self.members = tuple(members)
        self.devices = tuple(device for member in members for device in member.devices)
        self._turn = asyncio.Lock()
        self._scoring: dict[int, tuple[asyncio.Future[None], asyncio.Future[Reply]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def lanes(self, model: str) -> int:  # noqa: ARG002 - it has one model
        """Return how many stages there are."""
        return len(self.devices)

    def prepare(self, job: Load | Connect | Join) -> Callable[[], Reply]:
        """Start a job on all members, outside of runs, and return how to wait for it."""
        waits = [member.prepare(job) for member in self.members]
        return lambda: [wait() for wait in waits][-1]

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing to do: the members are attached."""

    def detach(self) -> None:
        """Nothing to do: the members are detached."""

    def kill(self, why: str) -> None:
        """End all members."""
        for member in self.members:
            member.kill(why)

    def close(self) -> None:
        """Nothing to free: the members are closed."""

    def submit(self, job: Job) -> Ticket:
        """Start a job. A forward waits for the one before it; once begun, it goes through all stages, also when stopped."""
        if isinstance(job, Drop):
            return self._drop(job)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Reply] = loop.create_future()
        stopped = asyncio.Event()
        if isinstance(job, Prefill | Score):
            reached: asyncio.Future[None] = loop.create_future()
            if isinstance(job, Score):
                self._scoring[job.scores] = reached, reply
            self._start(self._pass(job, stopped, reached), reply)
        elif isinstance(job, Judge):
            self._start(self._judge(job), reply)
        else:
            if isinstance(job, Begin):
                self._turn, self._scoring = asyncio.Lock(), {}
            self._start(self._everywhere(job), reply)
        return Ticket(reply, stopped.set)

    def _start(self, work: Coroutine[Any, Any, Reply], reply: asyncio.Future[Reply]) -> None:
        async def finish() -> None:
            try:
                value = await work
            except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the reply
                if not reply.done():
                    reply.set_exception(error)
            else:
                if not reply.done():
                    reply.set_result(value)

        task = asyncio.get_running_loop().create_task(finish())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass(
        self, job: Prefill | Score, stopped: asyncio.Event, reached: asyncio.Future[None]
    ) -> Reply:
        """Take a forward through the stages; `reached` is done once the last one has it."""
        count, states, stamps, reply = len(self.members), b"", list[Stamp](), Reply(None, ())
        try:
            async with self._turn:
                if stopped.is_set():
                    return Reply((), ())
                for number, member in enumerate(self.members):
                    part = replace(job, stage=Stage(number, count, states))
                    last = number == count - 1
                    if isinstance(part, Score) and not last:
                        part = replace(part, judges=())
                    ticket = member.submit(part)
                    if last:
                        reached.set_result(None)
                    reply = await ticket.reply
                    stamps += _placed(reply, number)
                    states = reply.value or b""
        finally:
            if not reached.done():
                reached.set_result(None)
        return Reply(reply.value, tuple(stamps))

    async def _judge(self, job: Judge) -> Reply:
        """Judge where the logits are; the job is sent while the last stage still works."""
        reached, scored = self._scoring[job.scores]
        await reached
        if scored.done():
            scored.result()  # an error in a stage before: there is nothing to judge
        last = len(self.members) - 1
        reply = await self.members[last].submit(job).reply
        return Reply(reply.value, tuple(_placed(reply, last)))

    def _drop(self, job: Drop) -> Ticket:
        """Let all members forget scores, once they are there."""
        _, scored = self._scoring.pop(job.scores)

        def forget(_: object) -> None:
            for member in self.members:
                member.submit(job)

        scored.add_done_callback(forget)
        return Ticket(scored, lambda: None)

    async def _everywhere(self, job: Job) -> Reply:
        replies = await asyncio.gather(*(member.submit(job).reply for member in self.members))
        return replies[-1]


def _placed(reply: Reply, number: int) -> Iterator[Stamp]:
    """Yield a stage's stamps on its device; judging is its own work, not a part of the forward."""
    for stamp in reply.stamps:
        yield stamp._replace(lane=number, alone=stamp.kind in ("sample", "communicate"))
