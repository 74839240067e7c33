"""Several workers that work as one: a group that drafts together, ranks of a model, or a pipeline.

- A group shares the attention layers of fuzzy forwards (`specscope.engine.worker.exchange`). Each
  member runs every job on its own device, and may run other models in between.
- Ranks hold parts of a model that is split by tensors (`specscope.engine.model.shard`).
- A pipeline's members hold stages of the target's layers; a forward passes the stages in order.
  Source: PEARL (ICLR 2025), appendix G. A device computes a forward only during its own stage; in
  between it runs the drafter, whose jobs share its queue. The last stage has the logits and judges.

Members of a group and ranks exchange tensors directly, and all get every job at once: with the same
numbers and the same draws they draft and judge the same tokens. The run gets the leader's reply.
All workers get the same jobs in the same order, so all cache KV rows of the same tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from specscope.engine.errors import OutOfMemory, SpecScopeError, WorkerDied
from specscope.engine.trace.events import AFTER
from specscope.engine.types import Judgement
from specscope.engine.worker.exchange import exchange_memory
from specscope.engine.worker.jobs import (
    Begin,
    Drop,
    Fan,
    Job,
    Join,
    Judge,
    JudgeAll,
    Link,
    Measure,
    Prefill,
    Preparation,
    Propose,
    Reply,
    Score,
    Stage,
    Stamp,
)
from specscope.engine.worker.shared import SharedMemory
from specscope.engine.worker.worker import Ticket, Worker, finish

FOLLOW_S = 5.0
"""Seconds for the other ranks to answer once a rank has failed; they may wait for its tensors."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


class Ensemble:
    """Workers in order of rank or stage that work as one; `route` starts a job on them.

    Their owner attaches, detaches and closes them.
    """

    def __init__(
        self,
        kind: Literal["group", "ranks", "pipeline"],
        members: Sequence[Worker],
        route: Callable[[Job], Ticket],
    ) -> None:
        self.kind, self.members, self._route = kind, tuple(members), route
        self._leader = len(members) - 1 if kind == "pipeline" else 0
        self.name = members[self._leader].name
        """The leader's name: its q buffer is used."""
        self.devices = tuple(device for member in members for device in member.devices)

    @property
    def ended(self) -> bool:
        return any(member.ended for member in self.members)

    def lanes(self, model: str) -> int:  # noqa: ARG002 - all models
        return len(self.devices)

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        waits = [member.prepare(job) for member in self.members]
        return lambda: [wait() for wait in waits][self._leader]  # every reply must be received

    def attach(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def detach(self) -> None: ...

    def kill(self, why: str) -> None:
        for member in self.members:
            member.kill(why)

    def close(self) -> None: ...

    def submit(self, job: Job) -> Ticket:
        return self._route(job)


def group_of(name: str, members: Sequence[Worker]) -> Ensemble:
    ways = len(members)
    with contextlib.closing(exchange_memory(ways)) as memory:
        _prepare(members, [Join(name, memory.path, rank, ways) for rank in range(ways)])

    def route(job: Job) -> Ticket:
        job = replace(job, group=name) if isinstance(job, Propose) else job
        return _joined(members, job, [member.submit(job) for member in members])

    return Ensemble("group", members, route)


def ranks_of(name: str, members: Sequence[Worker]) -> Ensemble:
    ways, backend = len(members), BACKENDS[members[0].devices[0].kind]
    with contextlib.closing(SharedMemory(0)) as memory:
        _prepare(members, [Link(name, memory.path, rank, ways, backend) for rank in range(ways)])

    def route(job: Job) -> Ticket:
        loop, tickets = asyncio.get_running_loop(), [member.submit(job) for member in members]

        def kill_late() -> None:
            for member, ticket in zip(members, tickets, strict=True):
                if not ticket.reply.done():
                    member.kill(f"did not answer for {FOLLOW_S:g} s after another rank failed")

        def follow(done: asyncio.Future[Reply]) -> None:
            if not done.cancelled() and done.exception() is not None:
                loop.call_later(FOLLOW_S, kill_late)

        for ticket in tickets:
            ticket.reply.add_done_callback(follow)
        return _joined(members, job, tickets)

    return Ensemble("ranks", members, route)


def pipeline_of(members: Sequence[Worker]) -> Ensemble:
    return Ensemble("pipeline", members, _Stages(members).submit)


def _prepare(members: Sequence[Worker], jobs: Sequence[Preparation]) -> None:
    for wait in [member.prepare(job) for member, job in zip(members, jobs, strict=True)]:
        wait()


def _joined(members: Sequence[Worker], job: Job, tickets: Sequence[Ticket]) -> Ticket:
    """Return one ticket of a job that was submitted to all members; it is done when all are."""
    reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def settle(done: asyncio.Future[list[Any]]) -> None:
        if reply.done() or done.cancelled():
            return
        try:
            reply.set_result(merged(members[0].name, job, done.result()))
        except Exception as error:  # noqa: BLE001 - raised where the reply is awaited
            reply.set_exception(error)

    asyncio.gather(*(t.reply for t in tickets), return_exceptions=True).add_done_callback(settle)

    def stop() -> None:
        for ticket in tickets:
            ticket.stop()

    return Ticket(reply, stop)


def merged(name: str, job: Job, results: Sequence[Any]) -> Reply:
    """Return the leader's value with the stamps of all members; a stamp's lane is the rank.

    Errors of memory and deaths have the rank in their message; SpecScopeError if the ranks decided
    differently.
    """
    ways = len(results)
    errors = [(rank, e) for rank, e in enumerate(results) if isinstance(e, BaseException)]
    for kind in (OutOfMemory, WorkerDied):  # the others waited for this rank
        for rank, error in errors:
            if isinstance(error, kind):
                error.args = (f"rank {rank} of {ways}: {error}",)
                raise error
    if errors:
        raise errors[0][1]
    replies: Sequence[Reply] = results
    if len({_decision(job, reply.value) for reply in replies}) > 1:
        raise SpecScopeError(f"the {ways} ranks of {name} decided differently; use devices of one kind")
    lanes = [[s._replace(lane=rank) for s in reply.stamps] for rank, reply in enumerate(replies)]
    return Reply(replies[0].value, tuple(chain.from_iterable(zip(*lanes, strict=True))))


def _decision(job: Job, value: Any) -> object:
    """Return the tokens that a rank drafted or decided on; all ranks must have the same."""
    if isinstance(job, Propose):
        return tuple((node.id, node.parent) for tree in value for node in tree)
    if isinstance(job, Fan):
        return tuple((one.place, one.token, *(node.id for node in one.chain)) for one in value)
    judgements = value if isinstance(job, Score | JudgeAll) else [value]
    return tuple(
        (tuple((j.token, j.outcome) for j in judgement.judged), judgement.best)
        for judgement in judgements or ()
        if isinstance(judgement, Judgement)
    )


class _Stages:
    """Passes the forwards of a pipeline from stage to stage."""

    def __init__(self, members: Sequence[Worker]) -> None:
        self._members = members
        self._turn = asyncio.Lock()
        self._scoring: dict[int, tuple[asyncio.Future[None], asyncio.Future[Reply]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
            self._start(self._each(job), reply)
        return Ticket(reply, stopped.set)

    def _start(self, work: Coroutine[Any, Any, Reply], reply: asyncio.Future[Reply]) -> None:
        task = asyncio.get_running_loop().create_task(finish(work, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pass_stages(
        self, job: Prefill | Score, stopped: asyncio.Event, reached: asyncio.Future[None]
    ) -> Reply:
        count, states, stamps, reply = len(self._members), b"", list[Stamp](), Reply(None, ())
        try:
            async with self._turn:
                if stopped.is_set():
                    return Reply((), ())
                for number, member in enumerate(self._members):
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
        reply = await self._members[-1].submit(job).reply
        return Reply(reply.value, tuple(_on_lane(reply, len(self._members) - 1)))

    async def _measure(self, job: Measure, stopped: asyncio.Event) -> Reply:
        """Time one stage after the other; a forward takes the sum of its stages."""
        count, sums = len(self._members), (0.0,) * len(job.rows)
        async with self._turn:
            for number, member in enumerate(self._members):
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
            for member in self._members:
                member.submit(job)

        scored.add_done_callback(drop)
        return Ticket(scored, lambda: None)

    async def _each(self, job: Job) -> Reply:
        replies = await asyncio.gather(*(member.submit(job).reply for member in self._members))
        return replies[-1]


def _on_lane(reply: Reply, number: int) -> Iterator[Stamp]:
    """Yield a stage's stamps with its lane; judging is not a part of the split forward."""
    for stamp in reply.stamps:
        yield stamp._replace(lane=number, alone=stamp.kind in AFTER)
