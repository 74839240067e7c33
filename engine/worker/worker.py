"""Protocol of a worker: a run submits a job and gets a ticket for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from specscope.engine.trace.events import Device
from specscope.engine.worker.jobs import Job, Preparation, Reply


class Ticket(NamedTuple):
    """A submitted job."""

    reply: asyncio.Future[Reply]
    """Done when the device has finished the job, also after `stop`."""
    stop: Callable[[], None]
    """Stops the job after its current forward; the reply is still sent."""


class Worker(Protocol):
    """Models on one or several devices that work as one; forwards run one by one, in order."""

    @property
    def name(self) -> str:
        """Unique in its cluster; its q buffer has the same name."""
        ...

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices; a stamp's lane is an index into them."""
        ...

    @property
    def ended(self) -> bool: ...

    def lanes(self, model: str) -> int:
        """Return how many of its devices, the first ones, a forward of the model keeps busy."""
        ...

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        """Start a job between runs and return a function that waits for its reply.

        The function raises ModelError (a model cannot be loaded) or WorkerDied.
        """
        ...

    def attach(self, loop: asyncio.AbstractEventLoop) -> None: ...

    def detach(self) -> None:
        """Stop serving the loop; no job may be running."""
        ...

    def submit(self, job: Job) -> Ticket:
        """Start a job.

        Control jobs wait for no forward, except that a judge waits for its scores.
        """
        ...

    def kill(self, why: str) -> None:
        """End a worker that does not answer: its jobs fail with `WorkerDied` and this reason.

        A worker in this process cannot be ended: its thread runs until its forward is over.
        """
        ...

    def close(self) -> None: ...


def finished(work: Callable[[], Reply]) -> Future[Reply]:
    """Do some work; returns its result, or the error that it raised."""
    done = Future[Reply]()
    try:
        done.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where the reply is awaited
        done.set_exception(error)
    return done


def settle(reply: asyncio.Future[Reply], take: Callable[[], Reply]) -> None:
    """Give a reply the result of `take`, or its error; nothing if nobody waits any more."""
    try:
        value = take()
    except BaseException as error:  # noqa: BLE001 - raised where the reply is awaited
        if not reply.done():
            reply.set_exception(error)
    else:
        if not reply.done():
            reply.set_result(value)


async def finish(work: Awaitable[Reply], reply: asyncio.Future[Reply]) -> None:
    """Give a reply the result of some work, or its error."""
    try:
        value = await work
    except Exception as error:  # noqa: BLE001 - raised where the reply is awaited
        if not reply.done():
            reply.set_exception(error)
    else:
        if not reply.done():
            reply.set_result(value)
