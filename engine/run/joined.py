"""Scores under load: one target forward scores the drafts of several sequences (`Gathering`).

The forward starts with the sequences' next drafts, and runs beside them. The logits are judged
together, once, when all of these drafts are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.run.scores import judge_job, mode_of, new_verdict
from engine.run.together import Call
from engine.types import Draft, Prefix, Verdict
from engine.workers.jobs import JudgeAll, Score

if TYPE_CHECKING:
    from engine.run.dispatch import Dispatcher, Submission
    from engine.run.together import Gathering
    from engine.workers.jobs import Chunk
    from engine.workers.worker import Worker


class JoinedScores:
    """One sequence's part of such a forward.

    Args:
        target: Scores and judges.
        prefix: The tokens so far.
        draft: The tokens to score.
    """

    def __init__(self, target: JoinedTarget, prefix: Prefix, draft: Draft) -> None:
        self.prefix, self.rows, self._target = prefix, len(draft), target
        self.number = -1
        """The worker's number for its logits."""
        self.forward: Submission | None = None
        self.span = -1
        """The span that scored it: the forward's, or that of its prompt's last part."""
        target.gathering.begin(Call("scores", target.score, ((self,), (draft,)), ()))

    async def judge(self, draft: Draft, *, bonus: bool = True, skip: int = 0, mode: str = "") -> Verdict:
        """Judge a draft with these scores; for the arguments see `Scores.judge`."""
        columns = ((self,), (draft,), (bonus,), (skip,), (mode,))
        return (await self._target.gathering.join(Call("judge", self._target.judge, columns, ())))[0]


class JoinedTarget:
    """The target, for the scores of several sequences.

    Args:
        dispatcher: Submits the jobs.
        worker: The target's worker.
        model: The target's name on its worker.
        gathering: Makes the calls.
    """

    def __init__(self, dispatcher: Dispatcher, worker: Worker, model: str, gathering: Gathering) -> None:
        self.gathering = gathering
        self._dispatcher, self._worker, self._model = dispatcher, worker, model
        self._lanes = worker.lanes(model)

    async def score(
        self, parts: Sequence[JoinedScores], drafts: Sequence[Draft], chunks: tuple[Chunk, ...] = ()
    ) -> list[None]:
        """Forward all drafts, and parts of prompts; the logits stay on the device."""
        dispatcher = self._dispatcher
        # the numbers of the logits are as unique as span ids
        spans = dispatcher.span_ids(max(self._lanes * (1 + len(chunks)), len(parts)))
        rows = tuple((draft.ids, draft.parents) for draft in drafts)
        job = Score(self._model, tuple(part.prefix for part in parts), rows, spans[0], chunks=chunks)
        forward = dispatcher.keep(dispatcher.submit(self._worker, "target", job, spans))
        forward.kind = "verify"
        ends = chunk_spans(chunks, spans, self._lanes)
        for part, number in zip(parts, spans, strict=False):
            part.forward, part.number = forward, number
            part.span = ends.get(part.prefix.sequence, spans[0])
        await forward.wait()
        return [None] * len(parts)

    async def judge(
        self,
        parts: Sequence[JoinedScores],
        drafts: Sequence[Draft],
        bonuses: Sequence[bool],
        skips: Sequence[int],
        modes: Sequence[str],
    ) -> list[Verdict]:
        """Judge all drafts in one job."""
        numbers = [part.number for part in parts]
        job = JudgeAll(tuple(map(judge_job, numbers, drafts, bonuses, skips)))
        usual = [mode_of(d.depth, p.rows - skip) for p, d, skip in zip(parts, drafts, skips, strict=True)]
        for part in parts:
            _record(part.forward, parts, usual)
        judging = self._dispatcher.submit(
            self._worker, "target", job, self._dispatcher.span_ids(2 * self._lanes)
        )
        judging.sequence = parts[0].prefix.sequence if len(parts) == 1 else -1
        judgements = (await judging.result()).value
        return [
            new_verdict(judgement, part.prefix, draft, mode or own, part.span)
            for judgement, part, draft, mode, own in zip(judgements, parts, drafts, modes, usual, strict=True)
        ]


def chunk_spans(chunks: Sequence[Chunk], spans: Sequence[int], lanes: int) -> dict[int, int]:
    """Return the span of each sequence's part of a prompt: the last ids of a forward."""
    own = spans[-lanes * len(chunks) :: lanes] if chunks else ()
    return {chunk.prefix.sequence: span for chunk, span in zip(chunks, own, strict=True)}


def _record(forward: Submission | None, parts: Sequence[JoinedScores], modes: Sequence[str]) -> None:
    """Emit a forward's spans, once."""
    assert forward is not None, "the forward is over"
    own = {mode for part, mode in zip(parts, modes, strict=True) if part.forward is forward}
    forward.kind = "pre-verify" if own - {"plain"} == {"pre-verify"} else "verify"
    forward.record()
