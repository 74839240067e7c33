"""Trees drafted level by level: a level source gives logits, the tree's shape selects the nodes.

A fuzzy tree (EasySpec) starts with an exact forward over the rows that have only been forwarded
fuzzily or not at all: the accepted tokens and the target's own (bonus calibration, section 3.2).
Its last row gives the first level; the forwards of the levels below are fuzzy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.drafters.level import levels
from engine.heads.drafting import Columns, Growing, LevelLogits
from engine.model.fuzzy import Fuzzy, layer_groups
from engine.workers.builder import Drafting, Partners, TreeBuilder
from engine.workers.forwards import NO_DRAFT, Forwards
from engine.workers.growths import grow_at_once
from engine.workers.head_forwards import PackedForwards
from engine.workers.jobs import Grow
from engine.workers.replies import Grown, Stamp


def grow(
    forwards: Forwards, job: Grow, drafting: Drafting, stamps: list[Stamp], stopped: Callable[[], bool]
) -> tuple[tuple[Grown, ...], ...]:
    """Draft a tree after each prefix, level by level; all trees share the forward of a level.

    Args:
        forwards: Holds the drafter and its KV slots. The rows of the trees stay cached: the next
            job reuses the paths that were accepted.
        job: Shape and prefixes of the trees.
        drafting: Sampling, draws and devices.
        stamps: Each forward's stamp is appended.
        stopped: Returns whether the job was stopped; called between levels.
    """
    head, before = forwards.heads.get(job.model), len(stamps)
    packed = None if head is None else PackedForwards(forwards, job.model, stamps, job.unread)
    if head is None or packed is None:
        columns, most = Columns(), job.levels
        source: LevelLogits = _model_levels(forwards, job, drafting.partners, stamps)
    else:
        columns, source = head.columns, head.draft(packed)
        known = map(packed.begin, job.prefixes)
        most = [count if begins else 0 for count, begins in zip(job.levels, known, strict=True)]
    trees = [
        TreeBuilder(*tree, job, drafting, columns) for tree in zip(job.prefixes, most, job.rows, strict=True)
    ]
    if packed is not None and not stopped() and grow_at_once(forwards, job, drafting, packed, trees, stamps):
        return tuple(tree.kept() for tree in trees)
    while growing := [tree for tree in trees if tree.grows]:
        if drafting.partners.agree(stopped()):
            break
        rows = [logits[:, : drafting.vocab_size] for logits in source(growing)]
        found = levels(rows, job.shape, drafting.sampling, sampled=job.sampled)
        for tree, level in zip(growing, found, strict=True):
            tree.add(level, len(stamps) - before - 1)
    return tuple(tree.kept() for tree in trees)


def _model_levels(forwards: Forwards, job: Grow, partners: Partners, stamps: list[Stamp]) -> ModelLevels:
    depth = forwards.models[job.model].depth
    fuzzy = (
        Fuzzy(layer_groups(depth, job.fuzzy), partners, mark=forwards.clock.mark)
        if depth and job.fuzzy > 1
        else None
    )
    return ModelLevels(forwards, job, fuzzy, stamps)


class ModelLevels:
    """The level source of a model: one forward per level, shared by the trees of all prefixes.

    The first forward has the uncached rows of the prefixes, each other one the frontier nodes.
    """

    def __init__(self, forwards: Forwards, job: Grow, fuzzy: Fuzzy | None, stamps: list[Stamp]) -> None:
        self._forwards, self._job, self._fuzzy, self._stamps = forwards, job, fuzzy, stamps
        self._calibrates = job.fuzzy > 1 and job.calibrate

    def __call__(self, trees: Sequence[Growing]) -> Sequence[torch.Tensor]:
        """Forward the frontier of all trees."""
        job, forwards, prefixes = self._job, self._forwards, [tree.prefix for tree in trees]
        if not trees[0].depth:
            kind, fuzzy = ("calibrate", None) if self._calibrates else ("draft", self._fuzzy)
            drafts = [NO_DRAFT] * len(trees)
            return forwards.extend(job.model, prefixes, drafts, self._stamps, kind, fuzzy=fuzzy)
        return forwards.branch(
            job.model,
            prefixes,
            [tree.level() for tree in trees],
            self._stamps,
            "draft",
            fuzzy=self._fuzzy,
            provisional=self._calibrates,
        )
