"""A target as a method sees it.

Logits stay on its worker and are judged there. `verify` scores and judges in one job; `score`
starts a forward whose logits may be judged several times.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace

from specscope.engine.run.dispatch import Submission
from specscope.engine.run.gathering import Gathering
from specscope.engine.run.models import Model
from specscope.engine.run.rounds import EarlyJudgement
from specscope.engine.run.scores import Scores, chunk_spans, judge_job, mode_of, new_verdict, record
from specscope.engine.types import Draft, Judgement, Prefix, Tree, Typical, Verdict
from specscope.engine.worker.jobs import Chunk, JudgeAll, Reply, Score


class TargetModel:
    """A target: it verifies drafts, or scores them first and judges them later."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.early: EarlyJudgement | None = None
        """The judgement of a draft that was verified at once."""

    @property
    def busy(self) -> bool:
        return self.model.busy

    def judged_early(self, prefix: Prefix, draft: Draft, judgement: Judgement, reply: Reply) -> None:
        """Keep the judgement of a draft until `verify` asks for it."""
        spans = self.model.span_ids(3)
        done = self.model.dispatcher.done(self.model.worker, self.model.role, prefix.sequence, reply, spans)
        self.early = EarlyJudgement(prefix, draft, judgement, done)

    async def verify(
        self, prefix: Prefix, draft: Draft, *, window: Tree | None = None, typical: Typical | None = None
    ) -> Verdict:
        """Score a draft and judge it, in one job.

        Args:
            prefix: The tokens so far.
            draft: The draft to judge.
            window: Rows of a look-ahead window in the same forward, none or more; not judged. The
                verdict's `best` then has the most probable token after every row.
            typical: Judge by typical acceptance, which is lossy.
        """
        early = self.early
        if early is not None and window is None and typical is None and early.of(prefix, draft):
            self.early = None
            self.model.dispatcher.emitter.flush()
            return replace(await early.verdict(), draft=draft)  # which may have rows of the method
        columns = ((prefix,), (draft,), (window,), (typical,))
        return (await self.model.join(self._verify, columns))[0]

    async def verify_each(self, prefixes: Sequence[Prefix], drafts: Sequence[Draft]) -> list[Verdict]:
        """Score and judge one draft per prefix, all in one forward."""
        if len(drafts) == 1:
            return [await self.verify(prefixes[0], drafts[0])]
        none = [None] * len(drafts)
        return await self.model.join(self._verify, (prefixes, drafts, none, none))

    async def _verify(
        self,
        prefixes: Sequence[Prefix],
        drafts: Sequence[Draft],
        windows: Sequence[Tree | None],
        typicals: Sequence[Typical | None],
        chunks: tuple[Chunk, ...] = (),
    ) -> list[Verdict]:
        spans = self.model.span_ids(3 + len(chunks))
        judgements = await self.model.judgements(spans, prefixes, drafts, windows, typicals, chunks)
        ends = chunk_spans(chunks, spans, self.model.lanes)
        return [
            new_verdict(j, x, draft, mode_of(len(draft), len(draft)), ends.get(x.sequence, spans[0]))
            for j, x, draft in zip(judgements, prefixes, drafts, strict=True)
        ]

    def score(self, prefix: Prefix, draft: Draft) -> Scores:
        """Start one forward over prefix and draft; under load, with the sequences' next drafts."""
        scores = Scores(self.judge, prefix, len(draft))
        if isinstance(self.model.calls, Gathering):
            self.model.calls.begin("scores", self._score, ((scores,), (draft,)))
            return scores
        forward = self._start_scores((scores,), (draft,))
        finalizer = weakref.finalize(scores, self.model.dispatcher.forget, forward, scores.number)
        finalizer.atexit = False
        return scores

    async def _score(
        self, parts: Sequence[Scores], drafts: Sequence[Draft], chunks: tuple[Chunk, ...] = ()
    ) -> list[None]:
        await self._start_scores(parts, drafts, chunks).wait()
        return [None] * len(parts)

    def _start_scores(
        self, parts: Sequence[Scores], drafts: Sequence[Draft], chunks: tuple[Chunk, ...] = ()
    ) -> Submission:
        # the numbers of the logits are as unique as span ids
        spans = self.model.dispatcher.span_ids(max(self.model.lanes * (1 + len(chunks)), len(parts)))
        rows = tuple((draft.ids, draft.parents) for draft in drafts)
        job = Score(self.model.name, tuple(part.prefix for part in parts), rows, spans[0], chunks=chunks)
        forward = self.model.dispatcher.keep(self.model.submit(job, spans))
        forward.kind = "verify"
        ends = chunk_spans(chunks, spans, self.model.lanes)
        for part, number in zip(parts, spans, strict=False):
            part.forward, part.number = forward, number
            part.span = ends.get(part.prefix.sequence, spans[0])
        return forward

    async def judge(self, scores: Scores, draft: Draft, bonus: bool, skip: int, mode: str) -> Verdict:
        """Judge a draft; see `Scores.judge`."""
        columns = ((scores,), (draft,), (bonus,), (skip,), (mode,))
        return (await self.model.calls.join("judge", self._judge, columns))[0]

    async def _judge(
        self,
        parts: Sequence[Scores],
        drafts: Sequence[Draft],
        bonuses: Sequence[bool],
        skips: Sequence[int],
        modes: Sequence[str],
    ) -> list[Verdict]:
        jobs = tuple(map(judge_job, (part.number for part in parts), drafts, bonuses, skips))
        usual = [mode_of(d.depth, p.rows - skip) for p, d, skip in zip(parts, drafts, skips, strict=True)]
        if isinstance(self.model.calls, Gathering):  # the forward is over
            record(parts, usual)
            judging = self.model.submit(JudgeAll(jobs))
        else:
            judging = self.model.submit(jobs[0])
            await parts[0]
            record(parts, usual)
        judging.spans = self.model.span_ids(2)
        judging.sequence = parts[0].prefix.sequence if len(parts) == 1 else -1
        value = (await judging.result()).value
        judgements: Sequence[Judgement] = [value] if isinstance(value, Judgement) else value
        return [
            new_verdict(judgement, part.prefix, draft, mode or own, part.span)
            for judgement, part, draft, mode, own in zip(judgements, parts, drafts, modes, usual, strict=True)
        ]

    async def cache(self, chunks: tuple[Chunk, ...]) -> None:
        await self._verify((), (), (), (), chunks)
