"""Drafting trees level by level: a source says which tokens may follow, a shape which of them become nodes.

A fuzzy tree (EasySpec) starts with an exact forward over all that was never forwarded exactly: the accepted tokens and the
target's own (bonus calibration, section 3.2). Its last row makes the first level; the levels below are fuzzy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from engine.drafters.level import next_level
from engine.drafters.tree import line, root
from engine.draws import TOP, Draws, most_probable
from engine.heads.drafting import LevelLogits
from engine.model.fuzzy import Alone, Fuzzy, Share, layer_groups
from engine.types import Prefix, Sampling
from engine.workers.forwards import NO_DRAFT, Forwards, Tree
from engine.workers.head_forwards import PrefixForwards
from engine.workers.jobs import Grow, Grown, Stamp


class Partners(Share, Protocol):
    """The devices that draft one tree together."""

    def agree(self, stopped: bool) -> bool:
        """Return whether any of them was asked to stop: all stop after the same forward."""
        ...


class Drafting(NamedTuple):
    """What drafting needs besides its job."""

    sampling: Sampling
    draws: Callable[[int], Draws]
    """Those of a sequence."""
    vocab_size: int
    """The target's."""
    write: Callable[[int, torch.Tensor], None]
    """Puts a row of q, (V,), into the slab."""
    partners: Partners = Alone()
    """Who shares the layers of fuzzy forwards."""


class TreeBuilder:
    """A tree as it grows after a prefix.

    Args:
        prefix: The tokens so far.
        levels: Levels at most.
        rows: Slab rows for its q.
        job: The job it is part of.
        drafting: How.
    """

    def __init__(
        self, prefix: Prefix, levels: int, rows: Sequence[int], job: Grow, drafting: Drafting
    ) -> None:
        self.prefix = prefix
        self.nodes = list[Grown]()
        self.at = [-1]
        """Which nodes get children, all of the last level; -1 is the prefix's last token."""
        self._above = [root(drafting.sampling, job.sampled)]
        self._paths = list[float]()
        self._levels, self._rows, self._job, self._how = levels, iter(rows), job, drafting
        self._draws = drafting.draws(prefix.sequence)

    def wants(self, level: int) -> bool:
        """Return whether it grows to this level."""
        return level < self._levels and bool(self.at)

    def add(self, level: int, logits: torch.Tensor, forward: int) -> None:
        """Add a level.

        Args:
            level: Its number, from 0.
            logits: Of the nodes that get children, (R, V); (1, V) where one row holds for all of them.
            forward: Number of the job's forward that they come from.
        """
        job, how = self._job, self._how
        nodes, q = next_level(
            logits[:, : how.vocab_size],
            self._above,
            job.shape,
            position=len(self.prefix) + level,
            sampling=how.sampling,
            draws=self._draws,
            sampled=job.sampled,
        )
        lines = [line(node.parent, q) for node in nodes]
        drawn = job.sampled and not how.sampling.greedy
        kept = {i: next(self._rows) for i in dict.fromkeys(lines)} if drawn else {}
        for i, row in kept.items():
            how.write(row, q[i])
        tops = most_probable(q, TOP)
        chosen = q[lines, [node.token for node in nodes]].tolist()
        first = len(self.nodes)
        self.nodes += [
            Grown(node.token, self.at[node.parent], level, kept.get(i, -1), p, tops[i], forward)
            for node, i, p in zip(nodes, lines, chosen, strict=True)
        ]
        self._paths += [node.path for node in nodes]
        onward = job.shape.onward(nodes)
        self._above, self.at = [nodes[i] for i in onward], [first + i for i in onward]

    def picked(self) -> tuple[Grown, ...]:
        """Return the nodes that the shape keeps, their parents among them, numbered anew."""
        kept = self._job.shape.kept(self._paths)
        number = {-1: -1} | {old: new for new, old in enumerate(kept)}
        return tuple(self.nodes[old]._replace(parent=number[self.nodes[old].parent]) for old in kept)


class LevelSource(Protocol):
    """Who drafts: a small model, or a head of the target."""

    def __call__(self, trees: Sequence[TreeBuilder]) -> Sequence[torch.Tensor] | None:
        """Return the logits after the nodes that get children, one tensor per tree; None when nothing can be drafted yet.

        Args:
            trees: Those that grow by a level, all from the same one.

        Returns:
            For each (R, V); (1, V) where one row holds for all R.
        """
        ...


def grow(
    forwards: Forwards, job: Grow, drafting: Drafting, stamps: list[Stamp], stopped: Callable[[], bool]
) -> tuple[tuple[Grown, ...], ...]:
    """Draft a tree after each prefix, all of them level by level together; `stopped` is asked between levels.

    Args:
        forwards: Holds the drafter and its KV slots. The rows of the trees stay there: the next job finds the paths
            that were accepted among them.
        job: What to draft.
        drafting: How.
        stamps: Takes one stamp per forward.
        stopped: Whether somebody asked to stop.
    """
    each = zip(job.prefixes, job.levels, job.rows, strict=True)
    trees = [TreeBuilder(*one, job, drafting) for one in each]
    source, before = _source(forwards, job, drafting.partners, stamps), len(stamps)
    for level in range(max(job.levels)):
        growing = [tree for tree in trees if tree.wants(level)]
        if not growing or drafting.partners.agree(stopped()) or (logits := source(growing)) is None:
            break
        for tree, rows in zip(growing, logits, strict=True):
            tree.add(level, rows, len(stamps) - before - 1)
    return tuple(tree.picked() for tree in trees)


def _source(forwards: Forwards, job: Grow, partners: Partners, stamps: list[Stamp]) -> LevelSource:
    if (head := forwards.heads.get(job.model)) is not None:
        (prefix,), (levels,) = job.prefixes, job.levels
        return HeadLevels(head.draft(PrefixForwards(forwards, job.model, prefix, stamps, levels)))
    fuzzy = _fuzzy(forwards.models[job.model].depth, job.fuzzy, partners)
    return ModelLevels(forwards, job, fuzzy, stamps)


class HeadLevels:
    """A drafting head: it drafts one tree at a time."""

    def __init__(self, logits: LevelLogits) -> None:
        self._logits = logits

    def __call__(self, trees: Sequence[TreeBuilder]) -> Sequence[torch.Tensor] | None:
        """Ask the head."""
        (tree,) = trees
        return None if (rows := self._logits(tree.nodes, tree.at)) is None else [rows]


class ModelLevels:
    """A model of its own: the first level comes from a forward of what is not cached, each other from one over the level above.

    Trees of several prefixes share these forwards.
    """

    def __init__(self, forwards: Forwards, job: Grow, fuzzy: Fuzzy | None, stamps: list[Stamp]) -> None:
        self._forwards, self._job, self._fuzzy, self._stamps = forwards, job, fuzzy, stamps
        self._calibrates = job.fuzzy > 1 and job.calibrate
        self._rows = {prefix.sequence: {-1: -1} for prefix in job.prefixes}
        """Of each tree's nodes that were forwarded: which of them each is."""

    def __call__(self, trees: Sequence[TreeBuilder]) -> Sequence[torch.Tensor]:
        """Forward the nodes of the last level of all trees."""
        job, forwards, prefixes = self._job, self._forwards, [tree.prefix for tree in trees]
        if trees[0].at == [-1]:
            kind, fuzzy = ("calibrate", None) if self._calibrates else ("draft", self._fuzzy)
            drafts = [NO_DRAFT] * len(trees)
            return forwards.extend(job.model, prefixes, drafts, self._stamps, kind, fuzzy=fuzzy)
        return forwards.branch(
            job.model,
            prefixes,
            [self._level(tree) for tree in trees],
            self._stamps,
            "draft",
            fuzzy=self._fuzzy,
            provisional=self._calibrates,
        )

    def _level(self, tree: TreeBuilder) -> Tree:
        rows = self._rows[tree.prefix.sequence]
        nodes = [tree.nodes[i] for i in tree.at]
        level = tuple(node.id for node in nodes), tuple(rows[node.parent] for node in nodes)
        rows |= {node: len(rows) - 1 + i for i, node in enumerate(tree.at)}
        return level


def _fuzzy(depth: int, size: int, share: Share) -> Fuzzy | None:
    """Return how a model of so many layers runs its fuzzy forwards; None where they are the ordinary ones."""
    return Fuzzy(layer_groups(depth, size), share) if depth and size > 1 else None
