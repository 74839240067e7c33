"""Scores: the logits of one target forward, kept on its device and judged there."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.types import Draft, Judgement, Prefix, Typical, Verdict
from engine.workers.jobs import Judge, Score

if TYPE_CHECKING:
    from engine.run.dispatch import Dispatcher
    from engine.workers.worker import Worker


class Scores:
    """Logits after a prefix and each token of a draft. Creating it starts the forward.

    Await it to wait for the forward. The device forgets the logits when this object is deleted.

    Args:
        dispatcher: Submits the jobs.
        worker: The target's worker.
        model: The target's name on its worker.
        prefix: The tokens so far.
        draft: The tokens to score.
    """

    def __init__(
        self, dispatcher: Dispatcher, worker: Worker, model: str, prefix: Prefix, draft: Draft
    ) -> None:
        self._dispatcher = dispatcher
        self._worker = worker
        self._lanes = worker.lanes(model)
        self._prefix = prefix
        self._rows = len(draft)
        spans = dispatcher.span_ids(self._lanes)
        self._id = spans[0]
        job = Score(model, (prefix,), ((draft.ids, draft.parents),), self._id)
        self._forward = dispatcher.keep(dispatcher.submit(worker, "target", job, spans))
        self._forward.kind = "verify"
        finalizer = weakref.finalize(self, dispatcher.forget, self._forward, self._id)
        finalizer.atexit = False

    def __await__(self) -> Generator[None, None, Scores]:
        """Wait for the forward; if the caller is cancelled, stop it."""
        yield from self._forward.wait().__await__()
        return self

    async def judge(self, draft: Draft, *, bonus: bool = True, skip: int = 0, mode: str = "") -> Verdict:
        """Judge a draft with these scores, as soon as the forward is over.

        Args:
            draft: Starts `skip` tokens after the scored prefix; may reach one token beyond the
                scored ones. Without `bonus`, leaves may follow the scored tokens in the draft.
            bonus: Draw a token of the target's own after a fully accepted draft.
            skip: Scored draft tokens that were judged before.
            mode: The round's mode for the trace; default: from the judged and the scored tokens.
        """
        dispatcher, usual = self._dispatcher, mode_of(draft.depth, self._rows - skip)
        judging = dispatcher.submit(self._worker, "target", judge_job(self._id, draft, bonus, skip))
        await self
        if usual == "pre-verify":
            self._forward.kind = "pre-verify"
        self._forward.record()
        judging.spans = dispatcher.span_ids(2 * self._lanes)
        reply = await judging.result()
        return new_verdict(reply.value, self._prefix, draft, mode or usual, self._id)


def judge_job(
    scores: int, draft: Draft, bonus: bool = True, skip: int = 0, typical: Typical | None = None
) -> Judge:
    """Return the job, without the draft's fields that only the trace needs."""
    tokens = tuple(replace(token, top=()) for token in draft.tokens)
    return Judge(scores, Draft(tokens), bonus, skip, typical)


def mode_of(judged: int, scored: int) -> str:
    """Return a round's mode from the draft tokens that were judged and those that were scored."""
    if judged == 0:
        return "plain"
    if judged <= scored:
        return "verify"
    return "post-verify" if scored else "pre-verify"


def new_verdict(judgement: Judgement, prefix: Prefix, draft: Draft, mode: str, span: int) -> Verdict:
    """Return the verdict on a draft: a worker's judgement, and the target's span that scored it."""
    facts = vars(judgement)
    return Verdict(**facts, sequence=prefix.sequence, draft=draft, mode=mode, span=span)
