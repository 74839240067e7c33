"""Scores: the logits of target forwards, kept on their device and judged there.

The forward of one sequence starts at once, and may be judged several times. Under load one forward
scores the drafts of several sequences (`Gathering`): it starts with their next drafts and runs
beside them. Its logits are judged together, once, when all of these drafts are done.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.run.batching import Call
from engine.types import Draft, Judgement, Prefix, Typical, Verdict
from engine.worker.jobs import Judge, JudgeAll, Score

if TYPE_CHECKING:
    from engine.run.batching import Gathering
    from engine.run.dispatch import Dispatcher, Submission
    from engine.worker.jobs import Chunk
    from engine.worker.worker import Worker


class Scores:
    """Logits after a prefix and each token of a draft. Creating it asks for the forward.

    Await it to wait for the forward. The device forgets the logits when this object is deleted, or
    under load when they were judged.
    """

    def __init__(self, scorer: Scorer, prefix: Prefix, draft: Draft) -> None:
        self.prefix, self.rows, self._scorer = prefix, len(draft), scorer
        self.number = -1
        """The worker's number for its logits."""
        self.forward: Submission | None = None
        self.span = -1
        """The span that scored it: the forward's, or that of its prompt's last part."""
        if scorer.gathering is not None:
            scorer.gathering.begin(Call("scores", scorer.score, ((self,), (draft,)), ()))
        else:
            forward = scorer.start((self,), (draft,))
            finalizer = weakref.finalize(self, scorer.dispatcher.forget, forward, self.number)
            finalizer.atexit = False

    def __await__(self) -> Generator[None, None, Scores]:
        """Wait for the forward; if the caller is cancelled, stop it."""
        assert self.forward is not None, "the forward has started"
        yield from self.forward.wait().__await__()
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
        columns = ((self,), (draft,), (bonus,), (skip,), (mode,))
        if self._scorer.gathering is None:
            return (await self._scorer.judge(*columns))[0]
        return (await self._scorer.gathering.join(Call("judge", self._scorer.judge, columns, ())))[0]


@dataclass(frozen=True, slots=True)
class Scorer:
    """The target as it scores and judges drafts of one or several sequences."""

    dispatcher: Dispatcher
    worker: Worker
    model: str
    gathering: Gathering | None = None

    def start(
        self, parts: Sequence[Scores], drafts: Sequence[Draft], chunks: tuple[Chunk, ...] = ()
    ) -> Submission:
        """Start a forward of all drafts, and of parts of prompts; the logits stay on the device."""
        lanes = self.worker.lanes(self.model)
        # the numbers of the logits are as unique as span ids
        spans = self.dispatcher.span_ids(max(lanes * (1 + len(chunks)), len(parts)))
        rows = tuple((draft.ids, draft.parents) for draft in drafts)
        job = Score(self.model, tuple(part.prefix for part in parts), rows, spans[0], chunks=chunks)
        forward = self.dispatcher.keep(self.dispatcher.submit(self.worker, "target", job, spans))
        forward.kind = "verify"
        ends = chunk_spans(chunks, spans, lanes)
        for part, number in zip(parts, spans, strict=False):
            part.forward, part.number = forward, number
            part.span = ends.get(part.prefix.sequence, spans[0])
        return forward

    async def score(
        self, parts: Sequence[Scores], drafts: Sequence[Draft], chunks: tuple[Chunk, ...] = ()
    ) -> list[None]:
        await self.start(parts, drafts, chunks).wait()
        return [None] * len(parts)

    async def judge(
        self,
        parts: Sequence[Scores],
        drafts: Sequence[Draft],
        bonuses: Sequence[bool],
        skips: Sequence[int],
        modes: Sequence[str],
    ) -> list[Verdict]:
        """Judge all drafts in one job; without load it waits on the device for the forward."""
        jobs = tuple(map(judge_job, (part.number for part in parts), drafts, bonuses, skips))
        usual = [mode_of(d.depth, p.rows - skip) for p, d, skip in zip(parts, drafts, skips, strict=True)]
        if self.gathering is None:
            judging = self.dispatcher.submit(self.worker, "target", jobs[0])
            await parts[0]
            _record(parts, usual)
        else:
            _record(parts, usual)
            judging = self.dispatcher.submit(self.worker, "target", JudgeAll(jobs))
        judging.spans = self.dispatcher.span_ids(2 * self.worker.lanes(self.model))
        judging.sequence = parts[0].prefix.sequence if len(parts) == 1 else -1
        value = (await judging.result()).value
        judgements: Sequence[Judgement] = [value] if self.gathering is None else value
        return [
            new_verdict(judgement, part.prefix, draft, mode or own, part.span)
            for judgement, part, draft, mode, own in zip(judgements, parts, drafts, modes, usual, strict=True)
        ]


def _record(parts: Sequence[Scores], modes: Sequence[str]) -> None:
    """Emit the spans of the parts' forwards, once."""
    for part in parts:
        assert part.forward is not None, "the forward is over"
        own = {mode for other, mode in zip(parts, modes, strict=True) if other.forward is part.forward}
        part.forward.kind = "pre-verify" if own - {"plain"} == {"pre-verify"} else "verify"
        part.forward.record()


def chunk_spans(chunks: Sequence[Chunk], spans: Sequence[int], lanes: int) -> dict[int, int]:
    """Return the span of each sequence's part of a prompt: the last ids of a forward."""
    own = spans[-lanes * len(chunks) :: lanes] if chunks else ()
    return {chunk.prefix.sequence: span for chunk, span in zip(chunks, own, strict=True)}


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
