"""A model split by tensors over worker processes that work as one (`engine.model.shard`).

Every rank runs every job on its part of the model; within a forward the ranks exchange tensors
directly (`engine.workers.ranks`). All ranks have the same logits and the same draws, so all draft
and judge the same tokens; the run gets the reply of the leader, rank 0.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from engine.errors import OutOfMemory, SpecScopeError, WorkerDied
from engine.types import Judgement
from engine.workers.jobs import Grow, Job, JudgeAll, Link, Preparation, Propose, Score
from engine.workers.replies import Reply
from engine.workers.shared import SharedMemory
from engine.workers.worker import Ticket, Worker

FOLLOW_S = 5.0
"""Seconds for the other ranks to answer once a rank has failed; they may wait for its tensors."""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""Kind of device -> library for the exchange of tensors."""


class ShardsWorker:
    """The ranks of one model.

    Args:
        name: The group's name in its members.
        members: The workers, in order of rank. Their owner closes them.
    """

    def __init__(self, name: str, members: Sequence[Worker]) -> None:
        self.name = members[0].name
        """The leader's name: the group uses its slab of q."""
        self.members = tuple(members)
        self.devices = tuple(device for member in members for device in member.devices)
        ways, backend = len(members), BACKENDS[self.devices[0].kind]
        with contextlib.closing(SharedMemory(0)) as memory:
            links = [Link(name, memory.path, rank, ways, backend) for rank in range(ways)]
            self._wait_all([m.prepare(link) for m, link in zip(members, links, strict=True)])

    @property
    def ended(self) -> bool:
        """Whether a member has ended."""
        return any(member.ended for member in self.members)

    def lanes(self, model: str) -> int:  # noqa: ARG002 - all models
        """Return the number of ranks."""
        return len(self.devices)

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        """Start a job on all ranks between runs; return a function that waits for all replies."""
        waits = [member.prepare(job) for member in self.members]
        return lambda: self._wait_all(waits)

    @staticmethod
    def _wait_all(waits: Sequence[Callable[[], Reply]]) -> Reply:
        replies = [wait() for wait in waits]  # every rank's reply must be received
        return replies[0]

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Do nothing: the placement attaches the members."""

    def detach(self) -> None:
        """Do nothing: the placement detaches the members."""

    def kill(self, why: str) -> None:
        """End all ranks."""
        for member in self.members:
            member.kill(why)

    def close(self) -> None:
        """Do nothing: the placement closes the members."""

    def submit(self, job: Job) -> Ticket:
        """Start a job on all ranks; the reply is done when all are."""
        loop = asyncio.get_running_loop()
        tickets = [member.submit(job) for member in self.members]
        reply: asyncio.Future[Reply] = loop.create_future()

        def follow(done: asyncio.Future[Reply]) -> None:
            if not done.cancelled() and done.exception() is not None:
                loop.call_later(FOLLOW_S, self._kill_late, tickets)

        def settle(done: asyncio.Future[list[Any]]) -> None:
            if reply.done() or done.cancelled():
                return
            try:
                reply.set_result(self._merged(job, done.result()))
            except Exception as error:  # noqa: BLE001 - raised where the reply is awaited
                reply.set_exception(error)

        for ticket in tickets:
            ticket.reply.add_done_callback(follow)
        asyncio.gather(*(t.reply for t in tickets), return_exceptions=True).add_done_callback(settle)

        def stop() -> None:
            for ticket in tickets:
                ticket.stop()

        return Ticket(reply, stop)

    def _kill_late(self, tickets: Sequence[Ticket]) -> None:
        for member, ticket in zip(self.members, tickets, strict=True):
            if not ticket.reply.done():
                member.kill(f"did not answer for {FOLLOW_S:g} s after another rank failed")

    def _merged(self, job: Job, results: Sequence[Any]) -> Reply:
        """Return the leader's value with the stamps of all ranks; a stamp's lane is the rank.

        Raises:
            OutOfMemory: A rank has no memory; the message has its number.
            WorkerDied: A rank died, likewise.
            SpecScopeError: A rank failed, or the ranks decided differently.
        """
        ways = len(self.members)
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
            raise SpecScopeError(
                f"the {ways} ranks of {self.name} decided differently; use devices of one kind"
            )
        lanes = [[s._replace(lane=rank) for s in reply.stamps] for rank, reply in enumerate(replies)]
        return Reply(replies[0].value, tuple(chain.from_iterable(zip(*lanes, strict=True))))


def _decision(job: Job, value: Any) -> object:
    """Return the tokens that a rank drafted or decided on; all ranks must have the same."""
    if isinstance(job, Propose | Grow):
        return tuple((node.id, node.parent) for tree in value for node in tree)
    judgements = value if isinstance(job, Score | JudgeAll) else [value]
    return tuple(
        (tuple((j.token, j.outcome) for j in judgement.judged), judgement.best)
        for judgement in judgements or ()
        if isinstance(judgement, Judgement)
    )
