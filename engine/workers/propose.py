"""Drafts of chains: on the device at once where the model can, else token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.draws import facts, propose_token, softmax
from engine.types import Sampling
from engine.workers.builder import Drafting
from engine.workers.by_token import levels
from engine.workers.chains import propose_chains
from engine.workers.forwards import Forwards
from engine.workers.jobs import Propose
from engine.workers.replies import Grown, Stamp


def propose(
    forwards: Forwards, job: Propose, drafting: Drafting, stamps: list[Stamp], stopped: Callable[[], bool]
) -> tuple[tuple[Grown, ...], ...]:
    """Return a drafted chain after each prefix.

    Args:
        forwards: The worker's models.
        job: The drafts.
        drafting: Sampling, draws, and where q is written.
        stamps: A stamp per forward is appended.
        stopped: Checked between two forwards of the host.
    """
    sampled = job.sampled and not drafting.sampling.greedy
    if not stopped() and (chains := propose_chains(forwards, job, drafting, stamps)) is not None:
        return chains
    return _propose_by_token(forwards, job, drafting, stamps, stopped, sampled=sampled)


def _propose_by_token(
    forwards: Forwards,
    job: Propose,
    drafting: Drafting,
    stamps: list[Stamp],
    stopped: Callable[[], bool],
    *,
    sampled: bool,
) -> tuple[tuple[Grown, ...], ...]:
    """Draft with one forward per position, whose tokens the host reads."""
    sampling, prefixes = drafting.sampling, list(job.prefixes)
    draws = [drafting.draws(prefix.sequence) for prefix in prefixes]
    ids: list[list[int]] = [[] for _ in prefixes]
    logits: list[list[torch.Tensor]] = [[] for _ in prefixes]
    ended = set[int]()
    for step, active, out in levels(forwards, job, prefixes, ended, stamps, stopped):
        for i, rows in zip(active, out, strict=True):
            row, prefix = rows[0, : drafting.vocab_size], prefixes[i]
            token, q = propose_token(
                row, position=len(prefix), sampling=sampling, draws=draws[i], sampled=sampled
            )
            if q is not None:
                drafting.write(job.rows[i][step], q)
            ids[i].append(token)
            logits[i].append(row)
            if job.stop_below and float((softmax(row) if q is None else q)[token]) < job.stop_below:
                ended.add(i)
            prefixes[i] = prefix + (token,)  # noqa: RUF005 - a Prefix, not a tuple
    rows = job.rows if sampled else [()] * len(prefixes)
    return tuple(_grown(*chain, sampling) for chain in zip(ids, logits, rows, strict=True))


def _grown(
    ids: list[int], logits: list[torch.Tensor], rows: Sequence[int], sampling: Sampling
) -> tuple[Grown, ...]:
    """Return a drafted chain; `rows` are the slab rows of its q, none unless it was sampled."""
    if not ids:
        return ()
    probabilities, tops = facts(torch.stack(logits), ids, sampling, bool(rows))
    drawn = enumerate(zip(ids, probabilities, tops, strict=True))
    return tuple(Grown(t, i - 1, i, rows[i] if rows else -1, p, top, i) for i, (t, p, top) in drawn)
