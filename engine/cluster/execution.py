"""Executes one run: a method's coroutine on an event loop, from the first job to the footer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.checkpoints.text import Detokenizer, IncrementalText
from specscope.engine.cluster.memory import RunSize
from specscope.engine.cluster.occupancy import OtherPrograms, Sampler
from specscope.engine.cluster.placement import Placement, RunWorkers
from specscope.engine.cluster.prompts import Prompt
from specscope.engine.cluster.ray_devices import NodeMeter
from specscope.engine.drafting.admission import Costs
from specscope.engine.drafting.planner import Plan
from specscope.engine.drafting.suffix import Finished
from specscope.engine.errors import OutOfMemory, RunCancelled, SpecScopeError, WorkerDied
from specscope.engine.heads.find import HeadFile
from specscope.engine.layout import Layout
from specscope.engine.methods import Method
from specscope.engine.run.dispatch import Dispatcher
from specscope.engine.run.gathering import AtOnce, Gathering
from specscope.engine.run.lengths import RoundLengths
from specscope.engine.run.run import Run, Sequence
from specscope.engine.run.serving import Load, Serving
from specscope.engine.runtimes.process import ProcessWorker
from specscope.engine.runtimes.ray.worker import RayWorker
from specscope.engine.runtimes.virtual import VirtualLoop
from specscope.engine.trace.emitter import TraceEmitter
from specscope.engine.trace.events import Event, Header, Occupancy, Row, Status
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, Sampling
from specscope.engine.worker.jobs import Begin

Listener: TypeAlias = Callable[[Event], None]
PATIENCE_S = 3.0
"""Seconds to wait for running forwards after Ctrl-C or the death of a worker."""


@dataclass(frozen=True)
class Request:
    """A requested run: checked, with all `auto` settings filled in."""

    method: Method
    cfg: Any
    prompts: tuple[Prompt, ...]
    ids: tuple[tuple[int, ...], ...]
    sampling: Sampling
    limits: Limits
    group: str = ""
    plan: Plan | None = None
    load: Load | None = None
    layout: Layout = field(default_factory=Layout)
    head: HeadFile | None = None
    costs: Costs | None = None
    """Times of forwards, where the load's policy chooses draft lengths."""
    open: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The settings that were `auto`, as given."""
    finished: Finished = field(default_factory=Finished)

    @property
    def longest(self) -> int:
        return max(map(len, self.ids)) + self.limits.max_new_tokens

    def begin(self, vocab: int, number: int) -> Begin:
        """Return the job that starts the run on a worker; `number` counts the cluster's runs."""
        layout, features = self.layout, self.head.config.features if self.head else ()
        slots, rows = min(layout.batch, len(self.ids)), self.longest + layout.slack
        return Begin(self.sampling, slots, rows, vocab, layout.packing, number, features)

    def size(self, begin: Begin) -> RunSize:
        batch = "--batch " if self.load is not None else "--set batch=" if begin.slots > 1 else ""
        return RunSize(begin, self.limits.max_new_tokens, batch)


@dataclass(frozen=True)
class Execution:
    """A run with its models, workers and recording."""

    request: Request
    pair: Pair
    pieces: Detokenizer
    workers: RunWorkers
    begin: Begin
    recording: Recording
    cancel: threading.Event

    def execute(self, placement: Placement) -> None:
        """Run the method, record the footer, and raise the error that ended the run, if any."""
        error: BaseException | None = None
        try:
            placement.on_loop(self._run_method())
        except BaseException as raised:  # noqa: BLE001 - recorded, then raised again below
            error = _first_leaf(raised)
            if isinstance(error, OutOfMemory):
                error = self.request.size(self.begin).advised(error)
        error = self.recording.error or error
        cancelled = isinstance(error, RunCancelled | asyncio.CancelledError | KeyboardInterrupt)
        status: Status = "done" if error is None else "cancelled" if cancelled else "failed"
        self.recording.end(status, "" if error is None or cancelled else _one_line(error))
        if error is not None and not isinstance(error, RunCancelled | asyncio.CancelledError):
            raise error

    async def _run_method(self) -> None:
        loop, recording = asyncio.get_running_loop(), self.recording
        recording.sequences = [
            Sequence(i, ids, self.request.limits, IncrementalText(self.pair.tokenizer))
            for i, ids in enumerate(self.request.ids)
        ]
        for worker in self.workers.distinct:
            await worker.submit(self.begin).reply
        calls = Gathering() if self.request.load else AtOnce()
        run, dispatcher = self._new_run(loop, calls)
        samples = sampler(self.workers, recording, loop)
        others = None if isinstance(loop, VirtualLoop) else other_programs(self.workers)
        samples.start()
        work = asyncio.ensure_future(self._decode(run, calls, dispatcher))
        watch = (
            None if isinstance(loop, VirtualLoop) else asyncio.ensure_future(self._cancel_on_request(work))
        )
        stopped_by: BaseException | None = None
        try:
            await work
        except BaseException as raised:
            stopped_by = _first_leaf(raised)
            raise
        finally:
            samples.stop()
            if others is not None and (row := others.row(recording.clock())) is not None:
                recording.add(row)
            if watch is not None:
                watch.cancel()
            died = await dispatcher.settle(self._seconds_to_settle(loop, stopped_by))
            if died is not None and self.cancel.is_set():
                raise died  # this run reports the dead worker, not the next one

    def _new_run(self, loop: asyncio.AbstractEventLoop, calls: AtOnce | Gathering) -> tuple[Run, Dispatcher]:
        recording, origin = self.recording, time.perf_counter_ns()
        if isinstance(loop, VirtualLoop):
            origin, recording.clock = 0, lambda: 1000 * loop.clock.now
        else:
            recording.clock = lambda: time.perf_counter_ns() - origin
        emitter = TraceEmitter(recording.add, self.pieces.piece)
        dispatcher = Dispatcher(recording.add, emitter, origin=origin, check=self._check)
        run = Run(
            recording.sequences,
            self.workers.by_model,
            self.workers.drafters,
            {} if self.begin.sampling.greedy else self.workers.q_buffers,
            dispatcher,
            clock=recording.clock,
            encode=self.pair.encode_text,
            calls=calls,
            readers=() if isinstance(loop, VirtualLoop) else self._readers(),
            finished=self.request.finished,
        )
        return run, dispatcher

    def _readers(self) -> list[str]:
        """Return the drafters that get the target's KV rows: both are whole, on a device each."""
        by_model, names = self.workers.by_model, self.workers.drafters
        if any(worker.lanes("target") > 1 for worker in by_model["target"]):
            return []
        drafting = zip(names, by_model.get("drafter", ()), strict=True)
        return [name for name, worker in drafting if worker.lanes(name) == 1 and self.pair.reads_rows(name)]

    async def _decode(self, run: Run, calls: AtOnce | Gathering, dispatcher: Dispatcher) -> None:
        request, method = self.request, self.request.method
        if request.load is None or isinstance(calls, AtOnce):
            await run.start(self.begin.slots)
            await method.decode(run, request.cfg)
            return

        def decode(view: Run) -> Awaitable[None]:
            return method.decode(view, request.cfg)

        dispatcher.step = 1
        parts = (run, request.load, decode, calls, dispatcher, self.recording.clock)
        lengths = RoundLengths(request.load.policy, request.costs) if request.costs else None
        await Serving(*parts, scored=request.layout.lockstep, lengths=lengths).serve()

    def _seconds_to_settle(
        self, loop: asyncio.AbstractEventLoop, stopped_by: BaseException | None
    ) -> float | None:
        """Return the seconds to wait for running forwards; None waits until they end.

        After Ctrl-C or the death of a worker, this cluster does no other run. A cancelled run
        leaves the cluster open; killing a worker would cost the next run its models.
        """
        last_run = isinstance(stopped_by, asyncio.CancelledError | WorkerDied) and not self.cancel.is_set()
        return PATIENCE_S if last_run and not isinstance(loop, VirtualLoop) else None

    async def _cancel_on_request(self, work: asyncio.Future[None]) -> None:
        while not self.cancel.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.02)
        work.cancel()

    def _check(self) -> None:
        if self.recording.error is not None:
            raise self.recording.error
        if self.cancel.is_set():
            raise RunCancelled("the run was stopped")


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        causes = [e for kind in (OutOfMemory, WorkerDied) for e in error.exceptions if isinstance(e, kind)]
        error = (causes or list(error.exceptions))[0]
    return error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SpecScopeError) else f"{type(error).__name__}: {text}"


class Recording:
    """Collects the run's trace and passes every event to a listener, header first, footer last.

    The listener's first error is kept, and ends the run.
    """

    def __init__(self, header: Header, listener: Listener | None) -> None:
        self.trace = Trace(header)
        self.sequences: list[Sequence] = []
        self.clock: Callable[[], int] = lambda: 0
        self.error: BaseException | None = None
        """The listener's first error; after it the listener gets no more events."""
        self._listener = listener
        self._emit(header)

    def add(self, event: Row) -> None:
        self.trace.add(event)
        self._emit(event)

    def end(self, status: Status, error: str) -> None:
        reasons = tuple(sequence.reason for sequence in self.sequences)
        footer = self.trace.new_footer(status, error, reasons)
        self.trace.add(footer)
        self._emit(footer)

    def _emit(self, event: Event) -> None:
        if self._listener is None or self.error is not None:
            return
        try:
            self._listener(event)
        except BaseException as error:  # noqa: BLE001 - it ends the run before its next job
            self.error = error


def sampler(workers: RunWorkers, recording: Recording, loop: asyncio.AbstractEventLoop) -> Sampler:

    def emit(row: Occupancy) -> None:
        loop.call_soon_threadsafe(recording.add, row)

    nodes = _on_nodes(workers)
    meters = {nodes[0].devices[0].kind: partial(NodeMeter, nodes)} if nodes else None
    return Sampler(workers.devices, emit, recording.clock, pids=_pids(workers), meters=meters)


def other_programs(workers: RunWorkers) -> OtherPrograms | None:
    """Return the load by other programs from now on; None on a Ray cluster, where none is read."""
    return None if _on_nodes(workers) else OtherPrograms(set(_pids(workers).values()))


def _on_nodes(workers: RunWorkers) -> list[RayWorker]:
    return [worker for worker in workers.members if isinstance(worker, RayWorker)]


def _pids(workers: RunWorkers) -> dict[str, int]:
    return {d.name: w.pid for w in workers.members if isinstance(w, ProcessWorker) for d in w.devices}
