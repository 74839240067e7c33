"""Forwards of the target as a method sees them: their logits stay on its device, and drafts are judged with them there."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.types import Draft, Prefix, Typical, Verdict
from engine.workers.jobs import Judge, Score

if TYPE_CHECKING:
    from engine.run.models import Model
    from engine.run.run import Run


class Forward:
    """A forward whose span is shown once its kind is known, or nobody will judge it any more."""

    def __init__(self, run: Run, model: Model, job: Score) -> None:
        self.number = job.scores
        self._run = run
        self._model = model
        self._sequence = job.prefixes[0].sequence
        self._step = run.step
        self._stopped = False
        self.shown = False
        self.ticket = run.submit(model, job)

    def stop(self) -> None:
        """Ask the worker to stop; the span comes as cancelled work once it has."""
        self._stopped = True
        self.ticket.stop()
        self.let_go()

    def show(self, kind: Any = "verify") -> None:
        """Emit the span, if that has not happened; the forward must be over."""
        failed = self.ticket.reply.cancelled() or self.ticket.reply.exception() is not None
        if self.shown or failed:
            return
        self.shown = True
        reply = self.ticket.reply.result()
        reply = reply._replace(stamps=tuple(stamp._replace(kind=kind) for stamp in reply.stamps))
        spans = range(self.number, self.number + len(reply.stamps))
        outcome = "cancelled" if self._stopped else "done"
        self._run.show(self._model, reply, spans, self._step, self._sequence, outcome)

    def let_go(self) -> None:
        """Nobody will judge it: show it when it is over, and let the device forget it."""
        if self.ticket.reply.done():
            self.show()
        else:
            self.ticket.reply.add_done_callback(lambda _: self.show())
        self._run.drop(self._model, self.number)


class Scores:
    """Logits of one forward, left on the target's device; forgotten there once nobody refers to this.

    Await it to wait until the forward is over.
    """

    def __init__(self, run: Run, model: Model, prefix: Prefix, draft: Draft) -> None:
        self.number = run.reserve(model.lanes)[0]
        self._run = run
        self._model = model
        self._rows = len(draft)
        job = Score(model.name, (prefix,), ((draft.ids, draft.parents),), self.number)
        self._forward = run.watch(Forward(run, model, job))
        weakref.finalize(self, self._forward.let_go).atexit = False

    def __await__(self) -> Generator[Any, None, Scores]:
        """Wait until the forward is over; when the waiting is cancelled, the forward is asked to stop."""
        try:
            yield from asyncio.shield(self._forward.ticket.reply)
        except asyncio.CancelledError:
            self._forward.stop()
            raise
        return self

    async def judge(self, draft: Draft, *, bonus: bool = True, skip: int = 0) -> Verdict:
        """Decide the draft with these scores, as soon as they are there.

        Args:
            draft: Starts `skip` tokens after the scored prefix; may reach one token beyond what was scored. Without
                `bonus` leaves may hang beside the scored tokens, after them in the draft.
            bonus: Draw a token of the target's own after a fully accepted draft.
            skip: Scored draft tokens decided before.
        """
        run, mode = self._run, mode_of(draft.depth, self._rows - skip)
        deciding = run.submit(self._model, judge_job(self.number, draft, bonus, skip))
        await self
        self._forward.show("pre-verify" if mode == "pre-verify" else "verify")
        reply = await run.finish(self._model, deciding, run.reserve(2 * self._model.lanes))
        return replace(reply.value, draft=draft, mode=mode, span=self.number, forward=self._rows)


def judge_job(
    scores: int, draft: Draft, bonus: bool = True, skip: int = 0, typical: Typical | None = None
) -> Judge:
    """Return the job, without what only the trace needs of a draft."""
    return Judge(scores, Draft(tuple(replace(t, top=()) for t in draft.tokens)), bonus, skip, typical)


def mode_of(judged: int, scored: int) -> str:
    """Return what a verification was: it may judge one token more than its forward had seen."""
    if judged == 0:
        return "plain"
    if judged <= scored:
        return "verify"
    return "post-verify" if scored else "pre-verify"
