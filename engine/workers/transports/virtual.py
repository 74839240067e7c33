"""Virtual time: the tokens are real (or recorded, or Bernoulli), the times come from a latency profile.

The loop's clock jumps to what is due next once every task waits, so a run takes the time of its token maths only and
two runs give the same rows. Whole microseconds; things due at the same time happen in the order they were asked for.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from engine.errors import Deadlock
from engine.model.fuzzy import PartTime
from engine.trace.events import Device
from engine.workers.host import Host
from engine.workers.jobs import (
    CONTROL,
    Connect,
    Drop,
    Grow,
    Import,
    Job,
    Join,
    Judge,
    Load,
    Prefill,
    Reply,
    Score,
    Stamp,
)
from engine.workers.transports.sharing import Processor
from engine.workers.worker import Ticket

if TYPE_CHECKING:
    from engine.heads.drafting import Work


class VirtualTime(selectors.SelectSelector):
    """A selector whose waiting costs nothing: it moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Microseconds since the loop was made."""
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._asked = 0

    def call_at(self, when: int, action: Callable[[], object]) -> None:
        """Do something at a time in microseconds."""
        self._asked += 1
        heapq.heappush(self._due, (max(when, self.now), self._asked, action))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; when everything waits, jump to what is due next.

        Raises:
            Deadlock: Everything waits and nothing is due.
        """
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        timer = None if timeout is None else self.now + max(1, round(timeout * 1e6))
        if self._due and (timer is None or self._due[0][0] <= timer):
            self.now = self._due[0][0]
            while self._due and self._due[0][0] == self.now:  # what happens at once is known at once
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


class Latency(Protocol):
    """How long things take, in whole microseconds (`engine.simulate.latency` makes one from a profile)."""

    @property
    def sample_us(self) -> int:
        """Judging a draft."""
        ...

    @property
    def communicate_us(self) -> int:
        """Moving a draft to the device that judges it."""
        ...

    def __call__(self, model: str, rows: int, context: int, batch: int = 1) -> int:
        """One forward of `rows` new rows after `context` cached ones."""
        ...

    def head(self, work: Work, rows: int, context: int, batch: int = 1) -> int:
        """One forward of a drafting head on the target's devices."""
        ...

    def parallel(
        self, model: str, rows: int, context: int, size: int, batch: int = 1, devices: int = 0
    ) -> int:
        """One fuzzy forward: attention layers in groups of `size`, shared by so many devices."""
        ...

    def stage(self, model: str, rows: int, context: int, number: int, count: int, batch: int = 1) -> int:
        """One stage's part of a forward of a model that is split over `count` devices by its layers."""
        ...

    def move_us(self, model: str, rows: int) -> int:
        """Bringing KV rows to another device."""
        ...

    def parts(
        self, model: str, rows: int, context: int, size: int, devices: int, batch: int = 1
    ) -> Sequence[Sequence[PartTime]]:
        """When each of several devices does what in it, in nanoseconds from its start."""
        ...


@dataclass
class _Job:
    reply: asyncio.Future[Reply]
    stop: asyncio.Future[None]
    stamps: list[Stamp] = field(default_factory=list[Stamp])


class VirtualWorker:
    """Devices of a profile that work as one: computes at once, then holds them for as long as the profile says.

    Args:
        name: Unique in its cluster.
        devices: What a forward keeps busy, all of them at once.
        latency: How long it does.
        preempts: Whether stopped work leaves at once; otherwise its forward ends first.
        processor: Where it shares its device with other workers; None for a device of its own.
        lanes: How many of the devices, the first ones, a model's forward keeps busy, where that is not all of them.
    """

    def __init__(
        self,
        name: str,
        devices: tuple[Device, ...],
        latency: Latency,
        preempts: bool = False,
        processor: Processor | None = None,
        lanes: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.devices = devices
        self._host = Host(name)
        self._latency = latency
        self._preempts = preempts
        self._processor = processor
        self._lanes = lanes or {}
        self._loop: VirtualLoop | None = None
        self._free = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scoring: dict[int, asyncio.Future[Reply]] = {}

    def lanes(self, model: str) -> int:
        """Return how many of its devices a forward of the model keeps busy: all, unless told otherwise."""
        return self._lanes.get(model, len(self.devices))

    def prepare(self, job: Load | Connect | Join) -> Callable[[], Reply]:
        """Do a job outside of runs; it takes no virtual time."""
        reply = self._host.handle(job)
        return lambda: reply

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve runs of this (virtual) event loop from now on."""
        assert isinstance(loop, VirtualLoop), "a virtual worker lives on a virtual loop"
        self._loop, self._free = loop, asyncio.Lock()

    def detach(self) -> None:
        """Stop serving the loop."""
        self._loop = None
        self._scoring.clear()

    def submit(self, job: Job) -> Ticket:
        """Start a job; judging takes time but waits for no forward but the one it judges."""
        assert self._loop is not None, "submit needs an attached loop"
        state = _Job(self._loop.create_future(), self._loop.create_future())
        if isinstance(job, Score):
            self._scoring[job.scores] = state.reply
        if isinstance(job, Drop):
            self._scoring.pop(job.scores, None)
        if isinstance(job, CONTROL) and not isinstance(job, Judge):
            state.reply.set_result(Reply(self._host.handle(job).value, ()))
        else:
            work = self._judge(job, state) if isinstance(job, Judge) else self._forward(job, state)
            task = self._loop.create_task(self._finish(work, state))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def stop() -> None:
            if not state.stop.done():
                state.stop.set_result(None)

        return Ticket(state.reply, stop)

    def kill(self, why: str) -> None:
        """Do nothing: it answers in virtual time, whatever happens."""

    def close(self) -> None:
        """Nothing to free."""

    async def _finish(self, work: Awaitable[Reply], state: _Job) -> None:
        try:
            reply = await work
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the reply
            if not state.reply.done():
                state.reply.set_exception(error)
        else:
            if not state.reply.done():
                state.reply.set_result(reply)

    async def _forward(self, job: Job, state: _Job) -> Reply:
        async with self._free:
            if state.stop.done():
                return Reply((), ())
            done = self._host.handle(job)
            for stamp in done.stamps:
                if state.stop.done():
                    break
                if stamp.kind == "sample":
                    await self._sample(stamp, state)
                else:
                    await self._run(job, stamp, state)
            return Reply(done.value, tuple(state.stamps))

    async def _run(self, job: Job, stamp: Stamp, state: _Job) -> None:
        """Hold the devices for one forward."""
        model: str = getattr(job, "model", "target")
        asked, lanes = (model, stamp.rows, stamp.context), self.lanes(model)
        if isinstance(job, Import):  # the device that waits for the rows is held; the one that sends goes on
            await self._hold(stamp, self._latency.move_us(model, stamp.rows), state, lanes)
            return
        if isinstance(job, Prefill | Score) and job.stage is not None:
            us = self._latency.stage(*asked, job.stage.number, job.stage.total, stamp.batch)
            await self._hold(stamp, us, state, lanes, self._processor)
            return
        if stamp.work is not None:
            us = self._latency.head(stamp.work, stamp.rows, stamp.context, stamp.batch)
            await self._hold(stamp, us, state, lanes, self._processor)
            return
        if not isinstance(job, Grow) or job.fuzzy == 1 or stamp.kind != "draft":
            us = self._latency(*asked, stamp.batch)
            await self._hold(stamp, us, state, lanes, self._processor)
            return
        us = self._latency.parallel(*asked, job.fuzzy, stamp.batch, devices=lanes)
        parts = self._latency.parts(*asked, job.fuzzy, lanes, stamp.batch) if lanes > 1 else ()
        await self._hold(stamp, us, state, lanes, self._processor, parts)

    async def _judge(self, job: Judge, state: _Job) -> Reply:
        if (scoring := self._scoring.get(job.scores)) is not None:
            await asyncio.wait([scoring])
        done = self._host.handle(job)
        for stamp in done.stamps:
            await self._sample(stamp, state)
        return Reply(done.value, tuple(state.stamps))

    async def _sample(self, stamp: Stamp, state: _Job) -> None:
        if stamp.rows:  # a profile's token time holds the sampling of a plain step
            lanes = self.lanes("target")
            moved = stamp._replace(kind="communicate")
            await self._hold(moved, self._latency.communicate_us, state, lanes)
            await self._hold(stamp, self._latency.sample_us, state, lanes)

    async def _hold(
        self,
        stamp: Stamp,
        us: int,
        state: _Job,
        lanes: int,
        shared: Processor | None = None,
        parts: Sequence[Sequence[PartTime]] = (),
    ) -> None:
        """Keep so many devices busy, and stamp each; `parts` are theirs, from the start."""
        assert self._loop is not None, "the loop is attached while jobs run"
        clock = self._loop.clock
        start = clock.now
        over = shared.work(clock, us) if shared else self._loop.until(start + us)
        if self._preempts:
            await asyncio.wait([over, state.stop], return_when=asyncio.FIRST_COMPLETED)
        else:
            await over
        if shared and not over.done():
            shared.leave(clock, over)
        stamp = stamp._replace(start=1000 * start, end=1000 * clock.now, parts=())
        for lane in range(lanes):
            done = (p.later(stamp.start) for p in (parts[lane] if parts else ()))
            within = tuple(p for p in done if p.end <= stamp.end)
            state.stamps.append(stamp._replace(lane=lane, parts=within))
