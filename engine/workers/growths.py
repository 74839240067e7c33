"""A head's trees drafted as one static step (`engine.model.growth`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.drafters.level import Level
from engine.draws import Key, most_probable_of
from engine.layout import Packing
from engine.model.cache import Cache
from engine.model.growth import Given
from engine.workers.builder import Drafting, TreeBuilder
from engine.workers.forwards import Forwards
from engine.workers.head_forwards import PackedForwards
from engine.workers.jobs import Grow
from engine.workers.replies import Stamp

if TYPE_CHECKING:
    from engine.drafters.tree import LevelPlan
    from engine.model.choice import ChosenLevel
    from engine.model.growth import Drafted


def grow_at_once(
    forwards: Forwards,
    job: Grow,
    drafting: Drafting,
    packed: PackedForwards,
    trees: Sequence[TreeBuilder],
    stamps: list[Stamp],
) -> bool:
    """Grow the trees of a head without a host between the levels; they equal those of a loop.

    Args:
        forwards: The worker's models.
        job: The trees.
        drafting: Sampling, draws, and where q is written.
        packed: The head's forwards.
        trees: The trees, without nodes; not all of them grow.
        stamps: A stamp per forward is appended.

    Returns:
        Whether the trees are grown. Not if the head's levels need a host: they are of one forward,
        or their nodes' places are not known beforehand; or if they find no room.
    """
    growths, growing = forwards.growths.get(job.model), [tree for tree in trees if tree.grows]
    if growths is None or not growing or forwards.packing != Packing():
        return False
    cache, sampled = forwards.cache(job.model), job.sampled and not drafting.sampling.greedy
    assert isinstance(cache, Cache), "it is a decoder's"
    plans = job.shape.plans(max(tree.levels for tree in growing))
    rests = [packed.rest(tree.prefix) for tree in growing]
    if not growths.fits(cache, list(map(len, rests)), plans, drafting.vocab_size):
        return False
    first = len(stamps)
    rows = packed.exact(growing, [0] * len(growing))
    slots = [forwards.slot(rest.sequence) for rest in rests]
    states = torch.cat([forwards.states(job.model, rest.sequence, [len(rest) - 1]) for rest in rests])
    given = Given(
        slots,
        torch.cat([row[:, : drafting.vocab_size] for row in rows]),
        states,
        [_numbers(tree, plans, drafting) for tree in growing if sampled],
    )
    found = growths.draft(cache, plans, given, drafting.sampling, forwards.clock)
    context = [cache.length(slot) for slot in slots]
    for number, level in enumerate(found.levels):
        going = [b for b, tree in enumerate(growing) if tree.grows]
        if number and going:
            stamps.append(
                _stamp(found, number, [growing[b] for b in going], [context[b] for b in going], packed)
            )
            for b in going:
                context[b] += len(growing[b].frontier)
        for b in going:
            _add(growing[b], level, b, first + number)
    return True


def _numbers(tree: TreeBuilder, plans: Sequence[LevelPlan], drafting: Drafting) -> list[list[float]]:
    """Return the numbers that decide the draws of each level of a tree."""
    draws, position = drafting.draws(tree.prefix.sequence), len(tree.prefix)
    return [
        [draws.value(Key(position + level, "draft", node)) for node in range(sum(plan.counts))]
        for level, plan in enumerate(plans[: tree.levels])
    ]


def _stamp(
    found: Drafted, level: int, trees: Sequence[TreeBuilder], context: Sequence[int], packed: PackedForwards
) -> Stamp:
    """Return the stamp of the forward of a level, from 1, for the trees that grow."""
    (start, end), rows = found.times[level - 1], sum(len(tree.frontier) for tree in trees)
    cells, work = found.cells[level - 1], packed.layer.guessed
    return Stamp("draft", start, end, rows, sum(context), cells=cells, batch=len(trees), work=work)


def _add(tree: TreeBuilder, level: ChosenLevel, b: int, forward: int) -> None:
    """Add a level of prefix b to its tree."""
    rows = level.alive[b].nonzero()[:, 0]
    tops = most_probable_of(level.top_ids[b, rows], level.top[b, rows])
    if level.q is None:
        tree.add_best(Level(level.top.new_empty((len(rows), 0)), tops), forward)
        return
    drawn = zip(level.ids[b, rows].tolist(), level.counts[b, rows].tolist(), strict=True)
    tree.add_drawn(Level(level.q[b, rows], tops), [ids[:count] for ids, count in drawn], forward)
