"""Drafts of a drafter whose logits are split over ranks (`--drafter-tp`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from engine.device_rows import DeviceRows
from engine.types import Sampling
from engine.vocabulary import Vocabulary
from engine.workers.by_token import levels
from engine.workers.forwards import Forwards
from engine.workers.jobs import Propose
from engine.workers.replies import Grown, Stamp


def propose_greedy(
    forwards: Forwards,
    job: Propose,
    vocab_size: int,
    stamps: list[Stamp],
    stopped: Callable[[], bool],
) -> tuple[tuple[Grown, ...], ...]:
    """Draft the most probable token after each prefix, again and again.

    Ranks exchange a few numbers per token, once per forward.

    Args:
        forwards: Holds the drafter.
        job: The drafts.
        vocab_size: Tokens that can be drafted.
        stamps: A stamp per forward is appended; it includes the exchange.
        stopped: Whether to stop; called before each forward.
    """
    vocabulary, prefixes = forwards.models[job.model].vocabulary, list(job.prefixes)
    chains: list[list[Grown]] = [[] for _ in prefixes]
    ended = set[int]()
    for step, active, out in levels(forwards, job, prefixes, ended, stamps, stopped):
        before = vocabulary.spent
        logits = vocabulary.limited(torch.cat([rows[:1] for rows in out]), vocab_size)
        table = DeviceRows(logits, Sampling(), vocabulary).table([], {})
        add_exchange(stamps, vocabulary.spent - before)
        for row, i in enumerate(active):
            token = table.best[row]
            chains[i].append(Grown(token, step - 1, step, -1, table.p[row, token], table.top(row), step))
            if job.stop_below and table.p[row, token] < job.stop_below:
                ended.add(i)
            prefixes[i] += (token,)
    return tuple(map(tuple, chains))


def gathered(vocabulary: Vocabulary, rows: Sequence[torch.Tensor], stamps: list[Stamp]) -> list[torch.Tensor]:
    """Return whole rows of logits, (R, V), of each sequence's rows, (R, C), by one exchange."""
    if not vocabulary.split:
        return list(rows)
    before = vocabulary.spent
    whole = vocabulary.gather(torch.cat(list(rows))).split([len(part) for part in rows])
    add_exchange(stamps, vocabulary.spent - before)
    return list(whole)


def add_exchange(stamps: list[Stamp], spent: int) -> None:
    """Add an exchange that has just ended, of `spent` nanoseconds, to the last forward."""
    last = stamps[-1]
    stamps[-1] = last._replace(end=time.perf_counter_ns(), communicated=last.communicated + spent)
