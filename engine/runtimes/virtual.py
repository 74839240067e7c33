"""Virtual time: tokens are real, recorded or Bernoulli; a latency profile gives the times.

When every task waits, the loop's clock jumps to the next due action. So a run takes only the time
to compute its tokens, and two runs give the same rows. Times are whole microseconds; actions due at
the same time happen in the order of their requests.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from specscope.engine.errors import Deadlock, UsageError
from specscope.engine.model.fuzzy import PartTime
from specscope.engine.simulate.latency import Latency
from specscope.engine.trace.events import Device
from specscope.engine.trace.ranges import MOST_TIME
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import (
    CONTROL,
    Drop,
    Import,
    Job,
    Judge,
    Prefill,
    Preparation,
    Propose,
    Reply,
    Score,
    Stage,
    Stamp,
)
from specscope.engine.worker.worker import Ticket, finish, finished


class VirtualTime(selectors.SelectSelector):
    """A selector that moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._requests = 0
        self._over: UsageError | None = None

    def call_at(self, when: int, action: Callable[[], object]) -> None:
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
            raise self._over or Deadlock(
                f"stuck at {self.now} us of virtual time: every task waits and nothing is due"
            )
        if self.now > MOST_TIME // 1000:
            self._over = UsageError(  # its tasks may wait for ever for others that this ends
                f"the run takes more than {MOST_TIME // 10**9} s of virtual time; give the profile shorter times, or "
                "make fewer tokens"
            )
            raise self._over
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualTime()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now / 1e6

    def until(self, when: int) -> asyncio.Future[None]:
        reached: asyncio.Future[None] = self.create_future()
        self.clock.call_at(when, lambda: reached.done() or reached.set_result(None))
        return reached


class Processor:
    """A device shared by several workers: each of k forwards at once has 1/k of its speed.

    Shares are exact fractions; a forward ends at a whole microsecond, rounded up.
    """

    def __init__(self) -> None:
        self._left: dict[asyncio.Future[None], Fraction] = {}
        self._since = 0
        self._plans = 0

    def work(self, clock: VirtualTime, us: int) -> asyncio.Future[None]:
        """Start a forward that takes `us` microseconds alone; return a future of its end."""
        self._advance(clock.now)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left[done] = Fraction(us)
        self._plan(clock)
        return done

    def _advance(self, now: int) -> None:
        if self._left:
            share = Fraction(now - self._since, len(self._left))
            self._left = {done: max(Fraction(0), left - share) for done, left in self._left.items()}
        self._since = now

    def _plan(self, clock: VirtualTime) -> None:
        """Schedule the end of the next forward; a forward that starts earlier makes a new plan."""
        self._plans += 1
        if self._left:
            plan, soonest = self._plans, min(self._left.values()) * len(self._left)
            clock.call_at(
                clock.now + -(-soonest.numerator // soonest.denominator), lambda: self._end(clock, plan)
            )

    def _end(self, clock: VirtualTime, plan: int) -> None:
        if plan != self._plans:
            return
        self._advance(clock.now)
        for done in [done for done, left in self._left.items() if left <= 0]:
            del self._left[done]
            if not done.done():
                done.set_result(None)
        self._plan(clock)


class Hold(NamedTuple):
    """How long a forward holds its devices."""

    us: int
    computes: bool = True
    """Whether the forward shares its device's speed with other workers on it."""
    parts: Sequence[Sequence[PartTime]] = ()
    """Parts of a fuzzy forward per device, in nanoseconds from its start."""


def latency_of(job: Job, stamp: Stamp, latency: Latency, devices: int) -> Hold:
    """Return how long one of a job's forwards, stamped so, holds the devices it keeps busy."""
    model: str = getattr(job, "model", "target")
    forward = model, stamp.rows, stamp.context
    match job:
        case Import():  # holds the device that waits for the rows; the sender goes on
            return Hold(latency.move_us(model, stamp.rows), computes=False)
        case Prefill(stage=Stage(number, count)) | Score(stage=Stage(number, count)):
            return Hold(latency.stage(*forward, number, count, stamp.batch))
        case _ if stamp.work is not None:
            return Hold(latency.head(stamp.work, stamp.rows, stamp.context, stamp.batch))
        case Propose(fuzzy=size) if size > 1 and stamp.kind == "draft":
            us = latency.parallel(*forward, size, stamp.batch, devices=devices)
            parts = latency.parts(*forward, size, devices, stamp.batch) if devices > 1 else ()
            return Hold(us, parts=parts)
        case _:
            return Hold(latency(*forward, stamp.batch))


def in_one_forward(done: Reply) -> Reply:
    """Return a draft's reply as a block drafter's: its levels are masks of one forward's block."""
    first, rows = done.stamps[0], sum(stamp.rows for stamp in done.stamps)
    drafts = tuple(tuple(node._replace(forward=0) for node in draft) for draft in done.value)
    return Reply(drafts, (first._replace(rows=rows + first.batch),))  # a mask for each place


@dataclass
class _Pending:
    """A submitted job."""

    reply: asyncio.Future[Reply]
    stop: asyncio.Future[None]
    stamps: list[Stamp] = field(default_factory=list[Stamp])


class VirtualWorker:
    """Devices of a profile that work as one: it computes at once, then holds them for the latency.

    The workers on one device share its processor. `lanes`: models that keep only the first N
    devices busy, with N. `block`: whether its drafts are a block drafter's.
    """

    ended = False
    """An object does not end."""

    def __init__(
        self,
        name: str,
        devices: tuple[Device, ...],
        latency: Latency,
        processor: Processor | None = None,
        lanes: Mapping[str, int] | None = None,
        *,
        block: bool = False,
    ) -> None:
        self.name = name
        self.devices = devices
        self._host = Host(name)
        self._latency = latency
        self._processor = processor
        self._lanes = lanes or {}
        self._block = block
        self._loop: VirtualLoop | None = None
        self._free = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scoring: dict[int, asyncio.Future[Reply]] = {}

    def lanes(self, model: str) -> int:
        return self._lanes.get(model, len(self.devices))

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        return finished(partial(self._host.handle, job)).result  # it takes no virtual time

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        assert isinstance(loop, VirtualLoop), "a virtual worker lives on a virtual loop"
        self._loop, self._free = loop, asyncio.Lock()

    def detach(self) -> None:
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
            task = self._loop.create_task(finish(work, pending.reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        def stop() -> None:
            if not pending.stop.done():
                pending.stop.set_result(None)

        return Ticket(pending.reply, stop)

    def kill(self, why: str) -> None: ...

    def close(self) -> None: ...

    async def _forward(self, job: Job, pending: _Pending) -> Reply:
        async with self._free:
            if pending.stop.done():
                return Reply((), ())
            done = self._host.handle(job)
            if self._block and isinstance(job, Propose) and done.stamps:
                done = in_one_forward(done)
            for stamp in done.stamps:
                if pending.stop.done():
                    break
                if stamp.kind == "sample":
                    await self._sample(stamp, pending)
                else:
                    lanes = self.lanes(getattr(job, "model", "target"))
                    cost = latency_of(job, stamp, self._latency, lanes)
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
            await self._hold(moved, Hold(self._latency.communicate_us, computes=False), pending, lanes)
            await self._hold(stamp, Hold(self._latency.sample_us, computes=False), pending, lanes)

    async def _hold(self, stamp: Stamp, cost: Hold, pending: _Pending, lanes: int) -> None:
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
        await over
