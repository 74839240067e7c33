"""Workers: a run submits a job and gets a ticket for its reply."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

from specscope.engine.errors import WorkerDied
from specscope.engine.trace.events import Device
from specscope.engine.worker.jobs import Drop, Job, Preparation, Reply


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


class Pump(ABC):
    """Numbers the jobs of a worker on one device, and passes on their replies.

    A transport implements `_post` and `_stop`, and calls `_answer` for each reply, from any thread,
    or `_fail` when the worker has ended.
    """

    pid = 0
    """Process id; 0 until the worker has one of its own."""

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self.devices = (device,)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = count(1)
        self._owed: dict[int, tuple[Job, Future[Any]]] = {}
        """Jobs with their answers. Only the sending thread lets go of a job: its draft may be the
        last that holds its rows of q."""
        self._dropped: list[Drop] = []

    @abstractmethod
    def _post(self, number: int, job: Job, drops: Sequence[Drop]) -> None:
        """Send drops and a job to the worker."""

    @abstractmethod
    def _stop(self, number: int) -> None:
        """Stop a job after its current forward."""

    def lanes(self, model: str) -> int:  # noqa: ARG002 - it has one device
        return 1

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def detach(self) -> None:
        """Leave the loop, and forget the replies that no coroutine has awaited."""
        self._loop = None
        for number in [number for number, (_, answer) in self._owed.items() if answer.done()]:
            del self._owed[number]

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        return partial(self._take, self._send(job))

    def submit(self, job: Job) -> Ticket:
        """Send a job to the worker; drops are sent with the next job."""
        loop = self._loop
        assert loop is not None, "submit needs an attached loop"
        reply: asyncio.Future[Reply] = loop.create_future()
        if isinstance(job, Drop):
            self._dropped.append(job)
            return Ticket(reply, lambda: None)
        number = self._send(job)

        def deliver(_: object) -> None:
            if asyncio._get_running_loop() is loop:
                settle(reply, partial(self._take, number))
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, reply, partial(self._take, number))

        self._owed[number][1].add_done_callback(deliver)
        return Ticket(reply, partial(self._stop, number))

    def _send(self, job: Job) -> int:
        number = next(self._numbers)
        self._owed[number] = job, Future()
        drops, self._dropped = self._dropped, []
        self._post(number, job, drops)
        return number

    @property
    def _unanswered(self) -> list[Job]:
        return [job for job, answer in list(self._owed.values()) if not answer.done()]

    def _answer(self, number: int, value: Any) -> None:
        with contextlib.suppress(KeyError, InvalidStateError):  # the worker was given up
            answer = self._owed[number][1]
            if isinstance(value, BaseException):
                answer.set_exception(value)
            else:
                answer.set_result(value)

    def _take(self, number: int) -> Reply:
        """Return the reply to a job, or raise its error; in the thread that sent the job."""
        answer = self._owed[number][1]
        try:
            return answer.result()
        finally:
            del self._owed[number]

    def _fail(self, error: WorkerDied) -> None:
        for number in list(self._owed):
            self._answer(number, error)

    @property
    def _place(self) -> str:
        label = self.devices[0].label
        return f"{label} (process {self.pid})" if self.pid else label

    def _died(self, how: str) -> WorkerDied:
        return WorkerDied(f"the worker on {self._place} {how}; start the run again")
