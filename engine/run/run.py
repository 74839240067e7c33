"""What a method sees: a prefix, models and `commit`. Everything it does leaves events; it records nothing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from engine.errors import WorkerDied
from engine.run.batch import Batch
from engine.run.models import Model
from engine.run.race import Race
from engine.run.scores import Forward
from engine.run.sequences import Sequence as Decoded
from engine.trace.emitter import Committed, TraceEmitter
from engine.trace.events import Part, Row, Span, SpanKind
from engine.types import Draft, Prefix, Verdict
from engine.workers.jobs import Drop, Job, Reply, Retire
from engine.workers.slab import Slab
from engine.workers.worker import Ticket, Worker

if TYPE_CHECKING:
    from engine.drafters.ngrams import Lookahead


class Clock(Protocol):
    """Where a run's nanoseconds come from."""

    def __call__(self) -> int:
        """Nanoseconds since the run's start."""
        ...


class Run:
    """One run of one method.

    Args:
        sequences: What is being decoded.
        workers: The workers of `target` and of `drafter`.
        drafters: What each drafting worker calls its model: several may have different ones, or a drafting head.
        slabs: Rows of q for sampled drafts, by the drafting worker's name; none for a greedy run.
        emit: Takes every event.
        clock: Nanoseconds since the run's start.
        origin: The workers' nanosecond that is the run's 0.
        read: How a token id reads.
        encode: How a text becomes token ids, without special ones.
        check: Called before every job; raises what must end the run, `RunCancelled` when somebody asked to stop.
    """

    def __init__(
        self,
        sequences: list[Decoded],
        workers: Mapping[str, Sequence[Worker]],
        drafters: Sequence[str],
        slabs: Mapping[str, Slab],
        *,
        emit: Callable[[Row], None],
        clock: Clock,
        origin: int,
        read: Callable[[int], str],
        encode: Callable[[str], tuple[int, ...]],
        check: Callable[[], None],
    ) -> None:
        self.sequences = sequences
        self.slabs = slabs
        self.clock = clock
        self._encode = encode
        self._documents = 0
        self.step = 0
        self.emitter = TraceEmitter(emit, read)
        self.targets = [Model(self, "target", worker) for worker in workers.get("target", ())]
        """The pool of target servers."""
        drafting = zip(drafters, workers.get("drafter", ()), strict=True)
        self.drafters = [Model(self, name, worker, "drafter") for name, worker in drafting]
        """Most methods use the first."""
        self._emit = emit
        self._origin = origin
        self._check = check
        self._open = True
        self._spans = 0
        self._under_way: dict[asyncio.Future[Reply], tuple[Worker, Ticket]] = {}
        self._forwards: list[Forward] = []

    @property
    def x(self) -> Prefix:
        """The prompt and all committed tokens of the (first) sequence."""
        return self.sequences[0].x

    @property
    def done(self) -> bool:
        """Whether the (first) sequence ended."""
        return self.sequences[0].done

    @property
    def drafter(self) -> Model:
        """The (first) drafter."""
        return self.drafters[0]

    @property
    def target(self) -> Model:
        """The (first) target."""
        return self.targets[0]

    def race(self) -> Race:
        """Return a race; see there."""
        return Race()

    def batch(self, size: int, *, dynamic: bool = False) -> Batch:
        """Return the batch of the run's sequences; see there."""
        return Batch(self, size, dynamic=dynamic)

    async def prefill(self, prefixes: Sequence[Prefix]) -> None:
        """Cache prefixes on all models at once, but for their last tokens."""
        models = sorted((*self.drafters, *self.targets), key=lambda model: model.name != model.role)
        async with asyncio.TaskGroup() as prefills:
            for model in models:  # a head comes last: it reads what the target leaves on their worker
                prefills.create_task(model.prefill(prefixes))

    async def retire(self, sequences: Sequence[int]) -> None:
        """Free the KV slots of sequences that ended, on every worker."""
        for model in (*self.drafters, *self.targets):
            for sequence in sequences:
                await self.submit(model, Retire(sequence)).reply

    def document(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a reference document, and record it."""
        tokens = self._encode(text)
        self._documents += 1
        self.emitter.document(self._documents - 1, tokens)
        return tokens

    @property
    def room(self) -> int:
        """Tokens the (first) sequence can still take."""
        return self.sequences[0].room - len(self.x)

    def commit(self, *verdicts: Verdict, kept: Draft | None = None, pool: Lookahead | None = None) -> None:
        """Append the verdicts' tokens, up to where their sequences end. Emits decisions, tokens and the round.

        Args:
            verdicts: One for each sequence of the round.
            kept: Drafted tokens that still may be judged, although a target's own token was emitted.
            pool: Where the round's drafts came from, or what it taught; recorded.
        """
        alive = {token.number for token in kept.tokens} if kept else set[int]()
        step, now = self.step, self.clock()
        for verdict in verdicts:
            committed = self._append(verdict)
            sequence = self.sequences[verdict.sequence]
            over = verdict.own is not None or sequence.done
            if verdict.draft.source is not None:
                prompt = sequence.x.tokens[: sequence.prompt_length]
                self.emitter.later(partial(self.emitter.prompt, verdict.sequence, prompt))
            self.emitter.later(partial(self.emitter.round, step, verdict, committed, now))
            if pool is not None:
                self.emitter.later(partial(self.emitter.pooled, step, verdict, pool.told()))
            if over:
                self.emitter.later(partial(self.emitter.discard, step, verdict.sequence, alive))
        self.step += 1

    def _append(self, verdict: Verdict) -> list[Committed]:
        sequence, committed = self.sequences[verdict.sequence], list[Committed]()
        origins = ["accepted"] * len(verdict.accepted) + ([verdict.origin] if verdict.origin else [])
        for token, origin in zip(verdict.emitted, origins, strict=True):
            if sequence.done:
                break
            position = len(sequence.x)
            committed.append(Committed(position, token, origin, sequence.push(token)))
        return committed

    def reserve(self, n: int) -> range:
        """Number the next n spans."""
        self._spans += n
        return range(self._spans - n, self._spans)

    def submit(self, model: Model, job: Job) -> Ticket:
        """Start a job on a model's worker; then, while it works, tell what is still to be told of earlier rounds."""
        self._check()
        ticket = model.worker.submit(job)
        self._under_way[ticket.reply] = (model.worker, ticket)
        ticket.reply.add_done_callback(lambda reply: self._under_way.pop(reply, None))
        self.emitter.catch_up()
        return ticket

    async def call(self, model: Model, job: Job, spans: range) -> Reply:
        """Run a job on a model's worker and emit its spans; if the caller is cancelled, they come as cancelled work.

        Args:
            model: Whose worker.
            job: What to do.
            spans: Numbers for its spans.
        """
        prefixes: Sequence[Prefix] = getattr(job, "prefixes", ())
        sequence = prefixes[0].sequence if len(prefixes) == 1 else -1 if prefixes else 0
        return await self.finish(model, self.submit(model, job), spans, sequence)

    async def finish(self, model: Model, ticket: Ticket, spans: range, sequence: int = 0) -> Reply:
        """Wait for a submitted job and emit its spans; arguments as for `call`."""
        step = self.step

        def drained(reply: asyncio.Future[Reply]) -> None:
            if not reply.cancelled() and reply.exception() is None:
                self.show(model, reply.result(), spans, step, sequence, "cancelled")

        try:
            reply = await asyncio.shield(ticket.reply)
        except asyncio.CancelledError:
            ticket.stop()
            ticket.reply.add_done_callback(drained)
            raise
        self.show(model, reply, spans, step, sequence, "done")
        return reply

    def show(self, model: Model, reply: Reply, spans: range, step: int, sequence: int, outcome: str) -> None:
        """Emit a reply's stamps as spans of this run; `sequence` is -1 for work on several."""
        for number, stamp in zip(spans, reply.stamps, strict=False):
            device, kind = model.worker.devices[stamp.lane].name, cast("SpanKind", stamp.kind)
            start, end = stamp.start - self._origin, stamp.end - self._origin
            rank = 0 if stamp.alone else stamp.lane
            work = (model.role, step, sequence, stamp.rows, stamp.context, outcome, stamp.cells, rank)
            self._emit(Span(number, device, kind, start, end, *work))
            for part in stamp.parts:
                since = part.later(-self._origin)
                self._emit(Part(number, since.kind, since.layer, since.start, since.end))

    def busy(self, worker: Worker) -> bool:
        """Whether work of this run is under way on a worker."""
        return any(w is worker for w, _ in self._under_way.values())

    def drop(self, model: Model, scores: int) -> None:
        """Let the device forget scores; after the run there is nothing to forget."""
        if self._open:
            model.worker.submit(Drop(scores))

    def watch(self, forward: Forward) -> Forward:
        """Remember a forward until its span is shown."""
        self._forwards = [*(f for f in self._forwards if not f.shown), forward]
        return forward

    async def settle(self, patience: float | None = None) -> WorkerDied | None:
        """Stop jobs under way, wait until they left their devices, and record what is left over.

        Args:
            patience: Seconds until workers that have not answered are killed; None waits for them.

        Returns:
            The error of a worker that died meanwhile, if one did.
        """
        for forward in self._forwards:
            if not forward.shown and not forward.ticket.reply.done():
                forward.stop()
        left = dict(self._under_way)
        if left and patience is not None:
            _, late = await asyncio.wait(left, timeout=patience)
            for worker in {left[reply][0] for reply in late}:
                worker.kill(f"did not answer for {patience:g} s after the run was stopped")
        while self._under_way:
            await asyncio.wait(list(self._under_way))
        self._open = False
        for forward in self._forwards:
            forward.show()
        self.emitter.catch_up()
        for sequence in range(len(self.sequences)):
            self.emitter.discard(self.step, sequence)
        errors = [reply.exception() for reply in left if not reply.cancelled()]
        return next((error for error in errors if isinstance(error, WorkerDied)), None)
