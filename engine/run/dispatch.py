"""A run's jobs: submission to workers, span ids and spans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from specscope.engine.errors import WorkerDied
from specscope.engine.trace.emitter import TraceEmitter
from specscope.engine.trace.events import AFTER, Part, Routed, Row, Span, SpanKind
from specscope.engine.types import Prefix
from specscope.engine.worker.jobs import Chunk, Drop, Job, Reply
from specscope.engine.worker.worker import Ticket, Worker


class Submission:
    """A job at its worker; -1 is the sequence of a job for several."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        worker: Worker,
        role: str,
        sequence: int,
        ticket: Ticket,
        spans: range = range(0),
        *,
        claimed: bool = True,
    ) -> None:
        self.worker, self.role, self.sequence = worker, role, sequence
        self.step = dispatcher.step
        self.spans = spans
        """Span ids, one per stamp of the reply."""
        self.chunks: Sequence[Chunk] = ()
        """Parts of prompts that its forward caches; their spans' ids are the last of `spans`."""
        self.kind: SpanKind | None = None
        """Kind of its spans; None keeps the kinds that the worker reports."""
        self.roles: Mapping[str, str] = {}
        """Roles of kinds of spans that have another one than `role`."""
        self.reply = ticket.reply
        self.recorded = False
        self._dispatcher = dispatcher
        self._ticket = ticket
        self._stopped = not claimed
        """Whether its spans are `cancelled`: nobody wants its result."""

    async def result(self) -> Reply:
        await self.wait()
        self.record()
        return self.reply.result()

    async def wait(self) -> None:
        try:
            await asyncio.shield(self.reply)
        except asyncio.CancelledError:
            self.stop()
            raise

    def claim(self) -> Submission:
        """Ask for work that was done beforehand (`Dispatcher.done`)."""
        self._stopped = False
        return self

    def stop(self) -> None:
        self._stopped = True
        self._ticket.stop()
        self.record_when_over()

    async def cut(self) -> Reply:
        """End the job after its present forward; return the result so far, whose spans are done."""
        self._ticket.stop()
        return await self.result()

    def record_when_over(self) -> None:
        if self.reply.done():
            self.record()
        else:
            self.reply.add_done_callback(lambda _: self.record())

    def record(self) -> None:
        failed = self.reply.cancelled() or self.reply.exception() is not None
        if self.recorded or failed:
            return
        self.recorded = True
        reply = self.reply.result()
        if self.kind is not None:
            stamps = tuple(stamp._replace(kind=self.kind) for stamp in reply.stamps)
            reply = reply._replace(stamps=stamps)
        self._dispatcher.emit_spans(self, reply, "cancelled" if self._stopped else "done")


class Dispatcher:
    """Submits a run's jobs and emits their spans; `step` is the current round, 0 during prefill.

    Args:
        emit: Receives spans and their parts.
        emitter: Emits rounds, deferred until the workers are busy.
        origin: The workers' nanosecond that is the run's 0.
        check: Called before every job; raises what must end the run, such as `RunCancelled`.
    """

    def __init__(
        self,
        emit: Callable[[Row], None],
        emitter: TraceEmitter,
        *,
        origin: int,
        check: Callable[[], None],
    ) -> None:
        self.emitter = emitter
        self.step = 0
        self._emit = emit
        self._origin = origin
        self._check = check
        self._open = True
        self._n_spans = 0
        self._in_flight: dict[asyncio.Future[Reply], Submission] = {}
        self._unrecorded: list[Submission] = []

    def span_ids(self, n: int) -> range:
        self._n_spans += n
        return range(self._n_spans - n, self._n_spans)

    def submit(self, worker: Worker, role: str, job: Job, spans: range = range(0)) -> Submission:
        """Submit a job, then emit the pending events of earlier rounds: the worker is busy now.

        `role` and the ids `spans` are those of its spans.
        """
        self._check()
        submission = Submission(self, worker, role, _sequence(job), worker.submit(job), spans)
        submission.chunks = getattr(job, "chunks", ())
        self._in_flight[submission.reply] = submission
        submission.reply.add_done_callback(lambda reply: self._in_flight.pop(reply, None))
        self.emitter.flush()
        return submission

    def done(self, worker: Worker, role: str, sequence: int, reply: Reply, spans: range) -> Submission:
        """Return work that a worker has done with another job; `cancelled` if nobody claims it."""
        over: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        over.set_result(reply)
        ticket = Ticket(over, lambda: None)
        return self.keep(Submission(self, worker, role, sequence, ticket, spans, claimed=False))

    def keep(self, submission: Submission) -> Submission:
        """Remember a job whose spans are emitted later; `settle` emits them at the latest."""
        self._unrecorded = [*(s for s in self._unrecorded if not s.recorded), submission]
        return submission

    def busy(self, worker: Worker) -> bool:
        return any(submission.worker is worker for submission in self._in_flight.values())

    def forget(self, submission: Submission, scores: int) -> None:
        """Emit the spans of a forward that will not be judged again, and drop its logits.

        The worker stores logits when the forward ends, so an earlier `Drop` would drop nothing.
        """

        def drop(reply: asyncio.Future[Reply]) -> None:
            if self._open and not reply.cancelled() and reply.exception() is None:
                submission.worker.submit(Drop(scores))

        submission.record_when_over()
        if submission.reply.done():
            drop(submission.reply)
        else:
            submission.reply.add_done_callback(drop)

    async def settle(self, patience: float | None = None) -> WorkerDied | None:
        """Stop the jobs in flight, wait until the workers are free, and emit the pending events.

        Workers that have not answered after `patience` seconds are killed; None waits. Returns the
        error of a worker that died meanwhile, if one did.
        """
        for submission in self._unrecorded:
            if not submission.recorded and not submission.reply.done():
                submission.stop()
        left = dict(self._in_flight)
        if left and patience is not None:
            _, late = await asyncio.wait(left, timeout=patience)
            for worker in {left[reply].worker for reply in late}:
                worker.kill(f"did not answer for {patience:g} s after the run was stopped")
        while self._in_flight:
            await asyncio.wait(list(self._in_flight))
        self._open = False
        for submission in self._unrecorded:
            submission.record()
        self.emitter.flush()
        self.emitter.discard_all(self.step)
        errors = [reply.exception() for reply in left if not reply.cancelled()]
        return next((error for error in errors if isinstance(error, WorkerDied)), None)

    def emit_spans(self, submission: Submission, reply: Reply, outcome: str) -> None:
        work, devices = submission, submission.worker.devices
        for number, stamp in zip(work.spans, reply.stamps, strict=False):
            device, kind = devices[stamp.lane].name, cast("SpanKind", stamp.kind)
            start, end = stamp.start - self._origin, stamp.end - self._origin
            origin = (work.roles.get(kind, work.role), work.step, work.sequence)
            size = (stamp.rows, stamp.context, outcome, stamp.cells)
            rank = 0 if stamp.alone else stamp.lane
            alone = end - stamp.communicated
            span = Span(number, device, kind, start, alone, *origin, *size, rank)
            forwards = work.chunks and kind not in AFTER
            if forwards:
                span = self._emit_chunks(work, span, stamp.lane)
            if span.rows or not forwards:
                self._emit(span)
            if stamp.communicated:  # the sum of many short exchanges, drawn after the computation
                (other,) = self.span_ids(1)
                rows = (stamp.rows, stamp.context, outcome)
                self._emit(Span(other, device, "communicate", alone, end, *origin, *rows))
            if stamp.experts and (span.rows or not forwards):
                self._emit(Routed(number, *stamp.experts))
            for part in stamp.parts:
                at = part.later(-self._origin)
                self._emit(Part(number, at.kind, at.layer, at.start, at.end))

    def _emit_chunks(self, work: Submission, forward: Span, lane: int) -> Span:
        each, chunks = work.worker.lanes(work.role), work.chunks
        for chunk, first in zip(chunks, work.spans[-each * len(chunks) :: each], strict=True):
            rows, sequence = len(chunk.prefix) - chunk.start, chunk.prefix.sequence
            facts = {"sequence": sequence, "rows": rows, "context": chunk.start, "cells": 0}
            self._emit(replace(forward, id=first + lane, kind="prefill", **facts))
            forward = replace(forward, rows=forward.rows - rows, context=forward.context - chunk.start)
        return forward


def _sequence(job: Job) -> int:
    # -1 for several, 0 for a job without prefixes
    prefixes: Sequence[Prefix] = getattr(job, "prefixes", ())
    return prefixes[0].sequence if len(prefixes) == 1 else -1 if prefixes else 0
