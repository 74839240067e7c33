"""The forwards of drafts whose next token the host chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from engine.types import Prefix
from engine.workers.forwards import NO_DRAFT, Forwards
from engine.workers.jobs import Propose
from engine.workers.replies import Stamp


def levels(
    forwards: Forwards,
    job: Propose,
    prefixes: list[Prefix],
    ended: set[int],
    stamps: list[Stamp],
    stopped: Callable[[], bool],
) -> Iterator[tuple[int, list[int], list[torch.Tensor]]]:
    """Forward all unfinished chains, once per level.

    Args:
        forwards: Holds the drafter.
        job: The chains and their lengths.
        prefixes: The tokens of each chain; the caller appends the token that it chooses.
        ended: Places of chains that end before their length; the caller adds to them.
        stamps: A stamp per forward is appended.
        stopped: Whether to stop; called before each forward.

    Yields:
        The level from 0, the places of the unfinished chains, and their logits, each (1, V).
    """
    for level in range(max(job.counts, default=0)):
        active = [i for i, count in enumerate(job.counts) if count > level and i not in ended]
        if stopped() or not active:
            return
        drafts = [NO_DRAFT] * len(active)
        yield (
            level,
            active,
            forwards.extend(job.model, [prefixes[i] for i in active], drafts, stamps, "draft"),
        )
