"""What a method sees: a prefix, models and `commit`. Everything it does leaves events; it records nothing itself."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from engine.errors import RunCancelled
from engine.runtime.events import Commit, Decision, Event, Piece, Round, Span
from engine.runtime.jobs import Drop, Job, Judge, Prefill, Propose, Proposed, Reply, Score, Stamp, Tokens
from engine.runtime.sequence import Sequence
from engine.runtime.slab import Slab
from engine.runtime.worker import Worker
from engine.types import Draft, DraftToken, Judged, Prefix, RowRef, Verdict


class Clock(Protocol):
    """Where a run's nanoseconds come from."""

    def __call__(self) -> int:
        """Nanoseconds since the run's start."""
        ...


class _Drafted(NamedTuple):
    sequence: int
    position: int
    token: DraftToken


class Run:
    """One run of one method.

    Args:
        sequences: What is being decoded.
        workers: The worker of each model, by name.
        slab: Rows of q for sampled drafts; None for a greedy run.
        emit: Takes every event.
        clock: Nanoseconds since the run's start.
        origin: The workers' nanosecond that is the run's 0.
        read: How a token id reads.
        cancelled: Whether somebody asked to stop.
    """

    def __init__(
        self,
        sequences: list[Sequence],
        workers: Mapping[str, Worker],
        slab: Slab | None,
        *,
        emit: Callable[[Event], None],
        clock: Clock,
        origin: int,
        read: Callable[[int], str],
        cancelled: Callable[[], bool],
    ) -> None:
        self.sequences = sequences
        self.workers = workers
        self.slab = slab
        self.clock = clock
        self.step = 0
        self._emit = emit
        self._origin = origin
        self._read = read
        self._cancelled = cancelled
        self._open = True
        self._spans = 0
        self._known: set[int] = set()
        self._drafted: dict[int, _Drafted] = {}
        self._under_way: set[asyncio.Future[Reply]] = set()
        self._unjudged: weakref.WeakSet[Scores] = weakref.WeakSet()

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
        """The drafter."""
        return Model(self, "drafter")

    @property
    def target(self) -> Model:
        """The target."""
        return Model(self, "target")

    def commit(self, verdict: Verdict) -> None:
        """Append the verdict's tokens, up to where the sequence ends. Emits decisions, tokens and the round."""
        sequence, step, now = self.sequences[verdict.sequence], self.step, self.clock()
        for judged in verdict.judged:
            self._decide(verdict, judged)
        emitted = 0
        origins = ["accepted"] * len(verdict.accepted) + ([verdict.origin] if verdict.origin else [])
        for token, origin in zip(verdict.emitted, origins, strict=True):
            if sequence.done:
                break
            position = len(sequence.x)
            text = sequence.push(token)
            self._name(token)
            self._emit(Commit(step, verdict.sequence, position, token, origin, text, now))
            emitted += 1
        counts = (len(verdict.draft), len(verdict.accepted), emitted)
        self._emit(Round(step, verdict.sequence, verdict.mode, *counts, now, verdict.span))
        if verdict.own is not None or sequence.done:
            self.discard(verdict.sequence)
        self.step += 1

    def discard(self, sequence: int) -> None:
        """Record what was drafted and never judged as discarded."""
        for span, drafted in list(self._drafted.items()):
            if drafted.sequence == sequence:
                del self._drafted[span]
                self._record(drafted)

    def _record(self, drafted: _Drafted) -> None:
        t = drafted.token
        self._name(t.id, *(token for token, _ in t.top))
        where = (self.step, drafted.sequence, -1, -1, drafted.position, t.id)
        self._emit(
            Decision(*where, None, _known(t.probability), None, "", "discarded", t.span, -1, (), t.top)
        )

    def _decide(self, verdict: Verdict, j: Judged) -> None:
        drafted = verdict.draft.tokens[j.node] if j.node >= 0 else None
        if drafted is not None:
            self._drafted.pop(drafted.span, None)
        tops = (*j.top_p, *(drafted.top if drafted else ()))
        self._name(j.token, *(token for token, _ in tops))
        q = j.q if drafted is None or not math.isnan(j.q) else drafted.probability
        self._emit(
            Decision(
                self.step,
                verdict.sequence,
                j.node,
                j.parent,
                j.position,
                j.token,
                _known(j.p),
                _known(q),
                _known(j.u),
                "" if j.outcome == "discarded" else j.rule,
                j.outcome,
                drafted.span if drafted else -1,
                -1 if j.outcome == "discarded" else verdict.span,
                j.top_p,
                drafted.top if drafted else (),
            )
        )

    def _name(self, *tokens: int) -> None:
        for token in tokens:
            if token not in self._known:
                self._known.add(token)
                self._emit(Piece(token, self._read(token)))

    def reserve(self, n: int) -> range:
        """Number the next n spans."""
        self._spans += n
        return range(self._spans - n, self._spans)

    async def call(self, model: str, job: Job, spans: range, *, keep: bool = False) -> Reply:
        """Run a job on the model's worker and emit its spans; if the caller is cancelled, they come as cancelled work.

        Args:
            model: Whose worker.
            job: What to do.
            spans: Numbers for its spans.
            keep: Leave the spans of a finished job to the caller.
        """
        if self._cancelled():
            raise RunCancelled("the run was stopped")
        worker, step = self.workers[model], self.step
        ticket = worker.submit(job)
        self._under_way.add(ticket.reply)
        sequence = getattr(job, "prefix", None)
        number = sequence.sequence if sequence is not None else 0

        def show(reply: Reply, outcome: str) -> None:
            for i, stamp in zip(spans, reply.stamps, strict=False):
                self._emit(self.span(i, worker, stamp, model, step, number, outcome))

        def drained(future: asyncio.Future[Reply]) -> None:
            self._under_way.discard(future)
            if not future.cancelled() and future.exception() is None:
                show(future.result(), "cancelled")

        try:
            reply = await asyncio.shield(ticket.reply)
        except asyncio.CancelledError:
            ticket.stop()
            ticket.reply.add_done_callback(drained)
            raise
        finally:
            if ticket.reply.done():
                self._under_way.discard(ticket.reply)
        if not keep:
            show(reply, "done")
        return reply

    def span(
        self, number: int, worker: Worker, stamp: Stamp, model: str, step: int, seq: int, outcome: str
    ) -> Span:
        """Return a worker's stamp as a span of this run."""
        times = (stamp.start - self._origin, stamp.end - self._origin)
        kind: Any = stamp.kind
        return Span(
            number, worker.device.name, kind, *times, model, step, seq, stamp.rows, stamp.context, outcome
        )

    def send(self, span: Span) -> None:
        """Emit a span."""
        self._emit(span)

    def note_drafted(self, prefix: Prefix, tokens: tuple[DraftToken, ...]) -> None:
        """Remember drafted tokens until their fate is known."""
        for i, token in enumerate(tokens):
            self._drafted[token.span] = _Drafted(prefix.sequence, len(prefix) + i, token)

    def drop(self, model: str, scores: int) -> None:
        """Let the device forget scores; after the run there is nothing to forget."""
        if self._open:
            self.workers[model].submit(Drop(scores))

    def watch(self, scores: Scores) -> None:
        """Remember scores whose span is not yet shown."""
        self._unjudged.add(scores)

    async def settle(self) -> None:
        """Wait for stopped jobs to leave their devices, and tell the fate of all that is left over."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))
        self._open = False
        for scores in sorted(self._unjudged, key=lambda s: s.number):
            scores.show("verify")
        for sequence in range(len(self.sequences)):
            self.discard(sequence)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class Model:
    """A model as a method sees it; where it lives and what it caches is not the method's business."""

    def __init__(self, run: Run, name: str) -> None:
        self._run = run
        self.name = name

    async def prefill(self, prefix: Prefix) -> None:
        """Cache the prefix but for its last token."""
        if len(prefix) > 1:
            await self._run.call(self.name, Prefill(self.name, prefix), self._run.reserve(1))

    async def propose(self, prefix: Prefix, n: int, *, sampled: bool = True) -> Draft:
        """Draft up to n tokens after the prefix, each from its own forward.

        Args:
            prefix: The tokens so far, drafted ones included.
            n: How many; fewer, or none, where the output would end before.
            sampled: Draw from q (rule 1 judges them); otherwise, and at temperature 0, take the argmax (rule 2).
        """
        run = self._run
        n = min(n, run.sequences[prefix.sequence].room - len(prefix))
        if n <= 0:
            return Draft.empty()
        lease = run.slab.lease(n) if run.slab is not None and sampled else None
        rows = lease.rows if lease else ()
        spans = run.reserve(n)
        job = Propose(self.name, prefix, n, sampled, rows)
        reply = await run.call(self.name, job, spans)
        device = run.workers[self.name].device.name
        proposed: tuple[Proposed, ...] = reply.value
        tokens = tuple(
            DraftToken(t.id, i - 1, RowRef(device, rows[i]) if rows else None, t.probability, t.top, spans[i])
            for i, t in enumerate(proposed)
        )
        run.note_drafted(prefix, tokens)
        return Draft(tokens, (lease,) if lease else ())

    async def score(self, prefix: Prefix, draft: Draft) -> Scores:
        """Forward prefix and draft once; the logits stay on the device."""
        spans = self._run.reserve(1)
        job = Score(self.name, prefix, draft.ids, draft.parents, spans[0])
        step = self._run.step
        reply = await self._run.call(self.name, job, spans, keep=True)
        worker = self._run.workers[self.name]
        span = self._run.span(spans[0], worker, reply.stamps[0], self.name, step, prefix.sequence, "done")
        return Scores(self._run, self.name, spans[0], span, len(draft))

    async def verify(self, prefix: Prefix, draft: Draft) -> Verdict:
        """Score a draft and judge it, in one job."""
        run = self._run
        spans = run.reserve(3)
        job = Score(self.name, prefix, draft.ids, draft.parents, spans[0], _judge(spans[0], draft))
        reply = await run.call(self.name, job, spans)
        mode = _mode(len(draft), len(draft))
        return replace(reply.value, draft=draft, mode=mode, span=spans[0], forward=len(draft))


class Scores:
    """Logits left on the target's device by one forward; forgotten there once nobody refers to this."""

    def __init__(self, run: Run, model: str, number: int, span: Span, rows: int) -> None:
        self.number = number
        self._run = run
        self._model = model
        self._span: Span | None = span
        self._rows = rows
        run.watch(self)
        weakref.finalize(self, run.drop, model, number).atexit = False

    async def judge(self, draft: Draft, *, bonus: bool = True, skip: int = 0) -> Verdict:
        """Decide the draft with these scores.

        Args:
            draft: Starts `skip` tokens after the scored prefix; may reach one token beyond what was scored.
            bonus: Draw a token of the target's own after a fully accepted draft.
            skip: Scored draft tokens decided before.
        """
        mode = _mode(len(draft), self._rows - skip)
        self.show("pre-verify" if mode == "pre-verify" else "verify")
        job = _judge(self.number, draft, bonus, skip)
        reply = await self._run.call(self._model, job, self._run.reserve(2))
        return replace(reply.value, draft=draft, mode=mode, span=self.number, forward=self._rows)

    async def tokens(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the target's own draw at these rows; 0 is the prefix's last token."""
        reply = await self._run.call(self._model, Tokens(self.number, rows), range(0))
        return reply.value

    def show(self, kind: Any) -> None:
        """Emit the forward's span; its kind is known once something is judged."""
        if self._span is not None:
            self._run.send(replace(self._span, kind=kind))
            self._span = None


def _judge(scores: int, draft: Draft, bonus: bool = True, skip: int = 0) -> Judge:
    """Return the job, without what only the trace needs of a draft."""
    return Judge(scores, Draft(tuple(replace(t, top=()) for t in draft.tokens)), bonus, skip)


def _mode(judged: int, scored: int) -> str:
    """What a verification was: it may judge one token more than its forward had seen."""
    if judged == 0:
        return "plain"
    if judged <= scored:
        return "verify"
    return "post-verify" if scored else "pre-verify"
