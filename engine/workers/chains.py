"""Drafted chains as one static step (`engine.model.chain`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.draws import Key, most_probable_of
from engine.layout import Packing
from engine.model.cache import Cache
from engine.model.chain import Chained, Chains
from engine.model.slots import Rows
from engine.types import Prefix
from engine.workers.builder import Drafting
from engine.workers.forwards import NO_DRAFT, Forwards
from engine.workers.jobs import Propose
from engine.workers.replies import Grown, Stamp


def propose_chains(
    forwards: Forwards, job: Propose, drafting: Drafting, stamps: list[Stamp]
) -> tuple[tuple[Grown, ...], ...] | None:
    """Draft a chain after each prefix without a host between the forwards.

    Args:
        forwards: The worker's models.
        job: The drafts.
        drafting: Sampling, draws, and where q is written.
        stamps: A stamp per forward is appended.

    Returns:
        The chains, as a loop of single forwards drafts them. None if the model drafts no chains, or
        not this draft: its end depends on its probabilities, or it finds no room.
    """
    chains = forwards.chains.get(job.model)
    asked = [i for i, count in enumerate(job.counts) if count]
    if chains is None or not asked or job.stop_below or forwards.packing != Packing():
        return None
    prefixes, counts = [job.prefixes[i] for i in asked], [job.counts[i] for i in asked]
    cache = forwards.cache(job.model)
    assert isinstance(cache, Cache), "it is a decoder's"
    if not chains.fits(cache, list(map(len, prefixes)), counts, drafting.vocab_size):
        return None
    sampled = job.sampled and not drafting.sampling.greedy
    rows = [job.rows[i] if sampled else () for i in asked]
    numbers = [
        [drafting.draws(prefix.sequence).value(Key(len(prefix) + step, "draft")) for step in range(count)]
        for prefix, count in zip(prefixes, counts, strict=True)
        if sampled
    ]
    found = _chained(forwards, job.model, chains, prefixes, counts, numbers, drafting, stamps)
    for b, slab_rows in enumerate(rows):
        for step, row in enumerate(slab_rows[: counts[b]]):
            assert found.q is not None, "it was sampled"
            drafting.write(row, found.q[step, b])
    drafts: list[tuple[Grown, ...]] = [()] * len(job.prefixes)
    for b, i in enumerate(asked):
        drafts[i] = _grown(found, b, counts[b], rows[b])
    return tuple(drafts)


def _chained(
    forwards: Forwards,
    name: str,
    chains: Chains,
    prefixes: Sequence[Prefix],
    counts: Sequence[int],
    numbers: Sequence[Sequence[float]],
    drafting: Drafting,
    stamps: list[Stamp],
) -> Chained:
    """Forward the prefixes' uncached rows, then the chains; add the chains' rows to the slots."""
    out = forwards.extend(name, prefixes, [NO_DRAFT] * len(prefixes), stamps, "draft")
    cache, slots = forwards.cache(name), [forwards.slot(prefix.sequence) for prefix in prefixes]
    assert isinstance(cache, Cache), "it is a decoder's"
    logits = torch.cat([rows[:1, : drafting.vocab_size] for rows in out])
    found = chains.draft(cache, slots, counts, logits, numbers, drafting.sampling, forwards.clock)
    for j, (start, end) in enumerate(found.times, 1):
        going = [slot for slot, count in zip(slots, counts, strict=True) if count > j]
        context = sum(cache.length(slot) + j - 1 for slot in going)
        cells, batch = found.cells, len(going)
        stamps.append(Stamp("draft", start, end, batch, context, cells=cells, batch=batch))
    order = sorted(range(len(slots)), key=slots.__getitem__)
    for b in order:
        cache.append(Rows.chain(slots[b], found.ids[b, : counts[b] - 1].numpy(), cache.length(slots[b])))
    return found


def _grown(found: Chained, b: int, count: int, rows: Sequence[int]) -> tuple[Grown, ...]:
    """Return the chain of prefix b."""
    ids, probabilities = found.ids[b].tolist(), found.probabilities[b].tolist()
    tops = most_probable_of(found.top_ids[b], found.top[b])
    return tuple(
        Grown(ids[i], i - 1, i, rows[i] if rows else -1, probabilities[i], tops[i], i) for i in range(count)
    )
