"""Virtual time: tokens are real, recorded or Bernoulli; a latency profile gives the times.

When every task waits, the loop's clock jumps to the next due action. So a run takes only the time
to compute its tokens, and two runs give the same rows. Times are whole microseconds; actions due at
the same time happen in the order of their requests.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from engine.errors import Deadlock
from engine.trace.events import Device
from engine.workers.host import Host
from engine.workers.jobs import CONTROL, Drop, Job, Judge, Preparation, Score
from engine.workers.prices import LatencyModel, Price, price
from engine.workers.replies import Reply, Stamp
from engine.workers.transports.sharing import Processor
from engine.workers.worker import Ticket


class VirtualTime(selectors.SelectSelector):
    """A selector that moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Microseconds since the loop was made."""
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._requests = 0

    def call_at(self, when: int, action: Callable[[], object]) -> None:
        """Run an action at a time in microseconds."""
        self._requests += 1
        heapq.heappush(self._due, (max(when, self.now), self._requests, action))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready keys; if none is ready, move the clock to the next due action.

        Raises:
            Deadlock: Every task waits and no action is due.
        """
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        timer = None if timeout is None else self.now + max(1, round(timeout * 1e6))
        if self._due and (timer is None or self._due[0][0] <= timer):
            self.now = self._due[0][0]
            while self._due and self._due[0][0] == self.now:  # all actions of this time run before any task
                heapq.heappop(self._due)[2]()
        elif timer is not None:
            self.now = timer
        else:
            raise Deadlock(f"stuck at {self.now} us of virtual time: every task waits and nothing is due")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualTime()
        super().__init__(self.clock)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self.clock.now / 1e6

    def until(self, when: int) -> asyncio.Future[None]:
        """Return a future that is done at a time in microseconds."""
        reached: asyncio.Future[None] = self.create_future()
        self.clock.call_at(when, lambda: reached.done() or reached.set_result(None))
        return reached


@dataclass
class _Pending:
    """A submitted job."""

    reply: asyncio.Future[Reply]
    stop: asyncio.Future[None]
    stamps: list[Stamp] = field(default_factory=list[Stamp])


class VirtualWorker:
    """Devices of a profile that work as one: it computes at once, then holds them for the latency.

    Args:
        name: Unique in its cluster.
        devices: A forward keeps all of them busy at once.
        latency: How long it does.
        processor: Shared by the workers on one device; None for an unshared device.
        lanes: Models that keep only the first N devices busy, with N.
    """

    ended = False
    """An object does not end."""

    def __init__(
        self,
        name: str,
        devices: tuple[Device, ...],
        latency: LatencyModel,
        processor: Processor | None = None,
        lanes: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.devices = devices
        self._host = Host(name)
        self._latency = latency
        self._processor = processor
        self._lanes = lanes or {}
        self._loop: VirtualLoop | None = None
        self._free = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scoring: dict[int, asyncio.Future[Reply]] = {}

    def lanes(self, model: str) -> int:
        """Return how many of its devices, the first ones, a forward of the model keeps busy."""
        return self._lanes.get(model, len(self.devices))

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        """Do a job between runs; it takes no virtual time."""
        done: Future[Reply] = Future()
        try:
            done.set_result(self._host.handle(job))
        except Exception as error:  # noqa: BLE001 - raised where the reply is awaited
            done.set_exception(error)
        return done.result

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve runs of this virtual event loop from now on."""
        assert isinstance(loop, VirtualLoop), "a virtual worker lives on a virtual loop"
        self._loop, self._free = loop, asyncio.Lock()

    def detach(self) -> None:
        """Stop serving the loop."""
        self._loop = None
        self._scoring.clear()

    def submit(self, job: Job) -> Ticket:
        """Start a job; a judge waits only for the forward that scores its draft."""
        assert self._loop is not None, "submit needs an attached loop"
        pending = _Pending(self._loop.create_future(), self._loop.create_future())
        if isinstance(job, Score):
            self._scoring[job.scores] = pending.reply
        if isinstance(job, Drop):
            self._scoring.pop(job.scores, None)
        if isinstance(job, CONTROL) and not isinstance(job, Judge):
            pending.reply.set_result(Reply(self._host.handle(job).value, ()))
        else:
            work = self._judge(job, pending) if isinstance(job, Judge) else self._forward(job, pending)
            task = self._loop.create_task(self._finish(work, pending))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def stop() -> None:
            if not pending.stop.done():
                pending.stop.set_result(None)

        return Ticket(pending.reply, stop)

    def kill(self, why: str) -> None:
        """Do nothing: a virtual worker always answers."""

    def close(self) -> None:
        """Do nothing: no resources are held."""

    async def _finish(self, work: Awaitable[Reply], pending: _Pending) -> None:
        try:
            reply = await work
        except Exception as error:  # noqa: BLE001 - raised where the reply is awaited
            if not pending.reply.done():
                pending.reply.set_exception(error)
        else:
            if not pending.reply.done():
                pending.reply.set_result(reply)

    async def _forward(self, job: Job, pending: _Pending) -> Reply:
        async with self._free:
            if pending.stop.done():
                return Reply((), ())
            done = self._host.handle(job)
            for stamp in done.stamps:
                if pending.stop.done():
                    break
                if stamp.kind == "sample":
                    await self._sample(stamp, pending)
                else:
                    lanes = self.lanes(getattr(job, "model", "target"))
                    cost = price(job, stamp, self._latency, lanes)
                    await self._hold(stamp, cost, pending, lanes)
            return Reply(done.value, tuple(pending.stamps))

    async def _judge(self, job: Judge, pending: _Pending) -> Reply:
        if (scoring := self._scoring.get(job.scores)) is not None:
            await asyncio.wait([scoring])
        done = self._host.handle(job)
        for stamp in done.stamps:
            await self._sample(stamp, pending)
        return Reply(done.value, tuple(pending.stamps))

    async def _sample(self, stamp: Stamp, pending: _Pending) -> None:
        if stamp.rows:  # a profile's time per token includes the sampling of a plain step
            lanes = self.lanes("target")
            moved = stamp._replace(kind="communicate")
            await self._hold(moved, Price(self._latency.communicate_us, computes=False), pending, lanes)
            await self._hold(stamp, Price(self._latency.sample_us, computes=False), pending, lanes)

    async def _hold(self, stamp: Stamp, cost: Price, pending: _Pending, lanes: int) -> None:
        """Keep the first `lanes` devices busy, and stamp each."""
        assert self._loop is not None, "the loop is attached while jobs run"
        clock, processor = self._loop.clock, self._processor if cost.computes else None
        start = clock.now
        over = processor.work(clock, cost.us) if processor else self._loop.until(start + cost.us)
        await self._wait(over, pending)
        stamp = stamp._replace(start=1000 * start, end=1000 * clock.now, parts=())
        for lane in range(lanes):
            parts = (part.later(stamp.start) for part in (cost.parts[lane] if cost.parts else ()))
            finished = tuple(part for part in parts if part.end <= stamp.end)
            pending.stamps.append(stamp._replace(lane=lane, parts=finished))

    async def _wait(self, over: asyncio.Future[None], pending: _Pending) -> None:  # noqa: ARG002 - tests override it
        """Wait for the end of a forward, also when its job was stopped."""
        await over
