"""Judging on the target's worker: one reading of the rows of all sequences, then the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from engine.accept import judge
from engine.draws import Draws, argmax
from engine.rows import Case, read
from engine.types import DraftToken, Judgement, Prefix, Sampling
from engine.workers.jobs import Judge


def judge_all(
    jobs: Sequence[Judge],
    logits: Sequence[Tensor],
    prefixes: Sequence[Prefix],
    sampling: Sampling,
    draws: Callable[[int], Draws],
    q_row: Callable[[DraftToken], Tensor | None],
    *,
    best: bool = False,
) -> tuple[Judgement, ...]:
    """Judge the drafts of several sequences.

    Rows in the host's memory are read number by number, those of a GPU ahead, all at once.

    Args:
        jobs: One per sequence.
        logits: Each sequence's rows, (R, V).
        prefixes: The tokens before row 0.
        sampling: The logits processors of p.
        draws: Sequence -> its random numbers.
        q_row: See `engine.accept.judge`.
        best: Whether judgements include the best token after every row.
    """
    cases = [
        Case(
            rows[job.skip :],
            job.draft,
            len(x) + job.skip,
            draws(x.sequence),
            job.bonus,
            job.typical is not None,
        )
        for job, rows, x in zip(jobs, logits, prefixes, strict=True)
    ]
    packed = read(cases, sampling) if logits[0].is_cuda else None
    judgements = tuple(
        judge(
            case.logits if packed is None else packed[i],
            job.draft,
            q_row,
            position=case.position,
            sampling=sampling,
            draws=case.draws,
            bonus=job.bonus,
            typical=job.typical,
        )
        for i, (job, case) in enumerate(zip(jobs, cases, strict=True))
    )
    if not best:
        return judgements
    ids = [argmax(rows) for rows in logits] if packed is None else [rows.argmax() for rows in packed]
    return tuple(replace(j, best=tuple(row)) for j, row in zip(judgements, ids, strict=True))
