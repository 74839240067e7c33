"""Ray actors as workers: one actor per device of a node.

A call's reply has two values: the answer, which comes to this process, and large data, which stays
in the object store (`engine.workers.ray.parcels`). An actor that dies fails its jobs with
`WorkerDied`, which names device and node. Ray reports a dead process at once; a node that vanished
or a worker that hangs is found by `check`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from engine.environment import release
from engine.errors import SpecScopeError, WorkerDied
from engine.workers.jobs import Connect, Drop, Job, Link, Load, Preparation, Reply
from engine.workers.ray.causes import cause
from engine.workers.ray.clock import compare
from engine.workers.ray.node import Node
from engine.workers.ray.parcels import Parcels, join_reply
from engine.workers.transports.process import Setup, Wire
from engine.workers.worker import Ticket

START_S = 120.0
"""Seconds for the start of an actor: its node may be busy."""
LATE = 2
"""Checks without an answer after which a node is called."""
SILENT = 7
"""Checks without an answer after which a worker is given up."""
SILENT_LONG = 60
"""The same while it loads a model."""
Outcome: TypeAlias = Callable[[], Reply]
"""Returns a reply or raises the job's error."""
Deliver: TypeAlias = Callable[[Outcome], None]
"""Passes an outcome, from any thread, to the thread that sent the job."""


class RayWorker:
    """A worker that is an actor.

    Args:
        setup: Its name, device and threads.
        node: The node that it starts on.
        parcels: Where rows of q are; shared by the cluster's workers.
        actor: Starts the actor and returns its handle.
        reserved: The placement group and bundle of its device, for people.
    """

    def __init__(
        self, setup: Setup, node: Node, parcels: Parcels, actor: Callable[[Setup], Any], reserved: str = ""
    ) -> None:
        self.name = setup.name
        self.devices = (setup.device,)
        self.node = node
        self.reserved = reserved
        self.pid = 0
        """Process id on its node; 0 until it has started."""
        self._parcels = parcels
        self._wire = Wire()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: dict[int, Job] = {}
        """Unanswered jobs. Only the sending thread lets go of a job: its draft may be the last."""
        self._waiting: dict[int, Deliver] = {}
        self._numbers = 0
        self._dropped: list[Drop] = []
        self._ended: WorkerDied | None = None
        self._lock = threading.Lock()
        self._ping: Future[int] | None = None
        self._late = 0
        self._closed = False
        self._patient = False
        """Whether it loads a model, which may take long."""
        self._actor = actor(setup)
        self._started: Future[int] = self._actor.pid.remote().future()

    @property
    def ended(self) -> bool:
        """Whether it was closed or died."""
        return self._ended is not None

    def lanes(self, model: str) -> int:  # noqa: ARG002 - it has one device
        """Return 1."""
        return 1

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        """Start a job between runs and return a function that waits for its reply."""
        if isinstance(job, Link):  # its path is one of this machine
            job = replace(job, path=f"{self._parcels.session} {job.group}")
        done: Future[Reply] = Future()

        def deliver(outcome: Outcome) -> None:
            try:
                done.set_result(outcome())
            except BaseException as error:  # noqa: BLE001 - raised where the reply is awaited
                done.set_exception(error)

        self._patient = isinstance(job, Load | Connect | Link)
        self._call(job, deliver)

        def wait() -> Reply:
            self._wait_for_start()
            try:
                return done.result()
            finally:
                self._patient = False

        return wait

    def _wait_for_start(self) -> None:
        if self.pid:
            return
        try:
            self.pid = self._started.result(timeout=START_S)
            found: str = self._actor.release.remote().future().result(timeout=START_S)
        except TimeoutError:
            raise SpecScopeError(
                f"the worker on {self._place} did not start in {START_S:g} s; its node may be overloaded, or its "
                "disk slow: Ray's logs on the node show more"
            ) from None
        except Exception as error:  # noqa: BLE001 - Ray's own errors
            raise self._death(cause(error)) from None
        if found != (own := release("specscope")):
            where = self.node.name or "the node"
            raise SpecScopeError(
                f"{where} has SpecScope {found}, this machine {own}: install one version on both"
            )

    def answer(self, function: Callable[[], Any]) -> Any:
        """Wait until the worker has started, call a function in its process, and return the result.

        Raises:
            SpecScopeError: It did not start, or ended.
        """
        self._wait_for_start()
        try:
            return self.ask(function).result(timeout=SILENT_LONG)
        except Exception as error:  # noqa: BLE001 - Ray's own errors
            raise self._death(cause(error)) from None

    def align(self) -> None:
        """Compare the clock of its node with this process's.

        Raises:
            WorkerDied: The worker ended.
        """
        if self.node.own:
            return
        try:
            self.node.clock = compare(lambda: self._actor.now.remote().future().result(timeout=SILENT))
        except Exception as error:  # noqa: BLE001 - Ray's own errors
            raise self._death(cause(error)) from None

    def ask(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function in the worker's process, beside its jobs; returns its future result."""
        return self._actor.call.remote(function).future()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve runs of this event loop from now on."""
        self._loop = loop

    def detach(self) -> None:
        """Stop serving the loop."""
        self._loop = None

    def submit(self, job: Job) -> Ticket:
        """Send a job to the actor; drops are sent with the next job."""
        loop = self._loop
        assert loop is not None, "submit needs an attached loop"
        reply: asyncio.Future[Reply] = loop.create_future()
        if isinstance(job, Drop):
            self._dropped.append(job)
            return Ticket(reply, lambda: None)

        def deliver(outcome: Outcome) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, reply, outcome)

        number = self._call(job, deliver)
        return Ticket(reply, partial(self._stop, number))

    def _stop(self, number: int) -> None:
        if number in self._waiting and self._ended is None:
            self._actor.stop.remote(number)

    def _call(self, job: Job, deliver: Deliver) -> int:
        """Send a job; `deliver` gets its reply or error, in any thread."""
        with self._lock:
            number, self._numbers = self._numbers, self._numbers + 1
            ended = self._ended
            if ended is None:
                self._jobs[number], self._waiting[number] = job, deliver
        if ended is not None:
            deliver(partial(_throw, ended))
            return number
        packed, references = self._parcels.pack(self._wire.pack(job))
        drops, self._dropped = tuple(self._dropped), []
        answer, data = self._actor.handle.options(num_returns=2).remote(number, packed, drops, *references)
        answer.future().add_done_callback(partial(self._receive, number, data))
        return number

    def _receive(self, number: int, data: Any, answer: Future[Any]) -> None:
        """Deliver an answer; Ray calls this in a thread of its own."""
        error = answer.exception()
        if error is not None:  # in another thread: finding the cause takes time, and Ray waits here
            threading.Thread(target=self._end, args=(cause(error),), daemon=True).start()
            return
        deliver = self._waiting.pop(number, None)
        if deliver is not None:
            deliver(partial(self._take, number, data, answer.result()))

    def _take(self, number: int, data: Any, value: Reply | BaseException) -> Reply:
        """Return the reply of an answer, or raise its error; in the thread that sent the job."""
        job = self._jobs.pop(number)
        if isinstance(value, BaseException):
            raise value
        self._parcels.put(self.name, job, data)
        return self.node.clock.local(join_reply(value, data))

    def check(self) -> None:
        """Ask an actor that owes a reply for a sign of life. Call it once a second.

        It counts calls and compares no clocks: a laptop that slept raises no alarm.
        """
        if not self.pid or not self._waiting or self._ended is not None:
            self._ping, self._late = None, 0
            return
        if self._ping is None or self._ping.done():
            self._ping, self._late = self._actor.pid.remote().future(), 0
            return
        self._late += 1
        if self._late >= LATE and not self.node.answers():
            self._end("")
        elif self._late >= (SILENT_LONG if self._patient else SILENT):
            self.kill(f"did not answer for {self._late} s")

    def kill(self, why: str) -> None:
        """Kill the actor, from any thread. Its jobs fail with `WorkerDied` and this reason."""
        self._end(f"{why} and was killed")
        self._kill()

    def lose(self, why: str) -> None:
        """Fail its jobs with `WorkerDied` and this reason; the actor cannot be reached."""
        self._end(why)
        self._closed = True

    def close(self) -> None:
        """Kill the actor: it has no state to save."""
        with self._lock:
            self._ended = self._ended or self._death("was closed", look=False)
        self._kill()
        self._closed = True

    def _kill(self) -> None:
        import ray

        if not self._closed and ray.is_initialized():  # otherwise Ray would start a cluster
            with contextlib.suppress(ValueError):  # the actor is gone
                ray.kill(self._actor)

    def _end(self, how: str) -> None:
        """Fail all jobs, once."""
        death = self._death(how)
        with self._lock:
            self._ended = self._ended or death
            waiting, self._waiting = self._waiting, {}
        for number, deliver in waiting.items():
            deliver(partial(self._take, number, None, self._ended))

    @property
    def _place(self) -> str:
        label = self.devices[0].label
        return f"{label} (process {self.pid})" if self.pid else label

    def _death(self, how: str, *, look: bool = True) -> WorkerDied:
        if look and not self.node.answers():
            how = f"is gone: {self.node.name or 'its node'} does not answer"
        return WorkerDied(f"the worker on {self._place} {how or 'ended'}; start the run again")


def _settle(reply: asyncio.Future[Reply], outcome: Outcome) -> None:
    try:
        value = outcome()
    except Exception as error:  # noqa: BLE001 - raised where the reply is awaited
        if not reply.cancelled():
            reply.set_exception(error)
    else:
        if not reply.cancelled():
            reply.set_result(value)


def _throw(error: BaseException) -> Reply:
    raise error
