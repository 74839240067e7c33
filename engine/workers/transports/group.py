"""A group of workers that draft together and share the attention layers of fuzzy forwards.

Every member runs every job on its own device, and may run other models in between. Members exchange
attention outputs directly (`engine.workers.exchange`). All compute the same draft; the run gets the
leader's, rank 0.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from engine.errors import OutOfMemory, SpecScopeError, WorkerDied
from engine.workers.exchange import exchange_memory
from engine.workers.jobs import Grow, Job, Join, Preparation
from engine.workers.replies import Reply
from engine.workers.worker import Ticket, Worker


class GroupWorker:
    """Several workers that work as one.

    Args:
        name: The group's name in its members.
        members: The workers, in order of rank. Their owner closes them.
    """

    def __init__(self, name: str, members: Sequence[Worker]) -> None:
        self.name = members[0].name
        """The leader's name: the group uses its slab of q."""
        self.members = tuple(members)
        self.devices = tuple(device for member in members for device in member.devices)
        self._group = name
        ways = len(members)
        with contextlib.closing(exchange_memory(ways)) as memory:
            for wait in [m.prepare(Join(name, memory.path, rank, ways)) for rank, m in enumerate(members)]:
                wait()

    @property
    def ended(self) -> bool:
        """Whether a member has ended."""
        return any(member.ended for member in self.members)

    def lanes(self, model: str) -> int:  # noqa: ARG002 - all models
        """Return the number of members."""
        return len(self.devices)

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        """Start a job on all members between runs; return a function that waits for all replies."""
        waits = [member.prepare(job) for member in self.members]

        def wait() -> Reply:
            replies = [each() for each in waits]  # every member's reply must be received
            return replies[0]

        return wait

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
        """Start a job on all members; the reply is done when all are.

        If a member died, its error is the one raised.
        """
        if isinstance(job, Grow):
            job = replace(job, group=self._group)
        tickets = [member.submit(job) for member in self.members]
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def settle(done: asyncio.Future[list[Any]]) -> None:
            if reply.done() or done.cancelled():
                return
            errors = [e for e in done.result() if isinstance(e, BaseException)]
            if errors:
                reply.set_exception(_cause(errors))
            elif isinstance(job, Grow) and not _same_draft(done.result()):
                reply.set_exception(
                    SpecScopeError(
                        f"the devices of {self._group} drafted different tokens; use devices of one kind"
                    )
                )
            else:
                reply.set_result(_merged(done.result()))

        asyncio.gather(*(t.reply for t in tickets), return_exceptions=True).add_done_callback(settle)

        def stop() -> None:
            for ticket in tickets:
                ticket.stop()

        return Ticket(reply, stop)


def _cause(errors: Sequence[BaseException]) -> BaseException:
    """Return the error that explains the others: members that wait for a failed one fail, too."""
    return next((e for kind in (OutOfMemory, WorkerDied) for e in errors if isinstance(e, kind)), errors[0])


def _same_draft(replies: Sequence[Reply]) -> bool:
    """Return whether all members drafted the same tokens."""
    nodes = {tuple((n.id, n.parent) for tree in reply.value for n in tree) for reply in replies}
    return len(nodes) == 1


def _merged(replies: Sequence[Reply]) -> Reply:
    """Return the leader's value with the stamps of all members; a stamp's lane is the rank."""
    lanes = [[s._replace(lane=rank) for s in reply.stamps] for rank, reply in enumerate(replies)]
    return Reply(replies[0].value, tuple(chain.from_iterable(zip(*lanes, strict=True))))
