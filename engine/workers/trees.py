"""Trees drafted level by level: a level source gives logits, the tree's shape selects the nodes.

A fuzzy tree (EasySpec) starts with an exact forward over the rows that have only been forwarded
fuzzily or not at all: the accepted tokens and the target's own (bonus calibration, section 3.2).
Its last row gives the first level; the forwards of the levels below are fuzzy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from engine.drafters.level import Level, levels, next_level
from engine.drafters.tree import line, root
from engine.draws import TOP, Draws
from engine.heads.drafting import Columns, Growing, LevelLogits
from engine.model.fuzzy import DeviceGroup, Fuzzy, SingleDevice, layer_groups
from engine.types import Prefix, Sampling
from engine.workers.forwards import NO_DRAFT, Forwards, Tree
from engine.workers.head_forwards import PackedForwards
from engine.workers.jobs import Grow
from engine.workers.replies import Grown, Stamp
from engine.workers.split_drafts import gathered


class Partners(DeviceGroup, Protocol):
    """The devices that draft one tree together."""

    def agree(self, stopped: bool) -> bool:
        """Return whether any device was stopped, so that all stop after the same forward."""
        ...


class Drafting(NamedTuple):
    """What `grow` needs besides its job."""

    sampling: Sampling
    draws: Callable[[int], Draws]
    """Maps a sequence to its draws."""
    vocab_size: int
    """The target's."""
    write: Callable[[int, torch.Tensor], None]
    """Writes one row of q, (V,), to the slab."""
    partners: Partners = SingleDevice()
    """The devices that share the layers of fuzzy forwards."""


class TreeBuilder:
    """A growing tree after a prefix.

    Args:
        prefix: The tokens before the tree.
        levels: The most levels.
        rows: Slab rows for its q.
        job: Gives the tree's shape, and whether it is sampled.
        drafting: Sampling, draws and slab.
        columns: The tokens of the logits' columns.
    """

    def __init__(
        self,
        prefix: Prefix,
        levels: int,
        rows: Sequence[int],
        job: Grow,
        drafting: Drafting,
        columns: Columns,
    ) -> None:
        self.prefix, self.levels, self._columns = prefix, levels, columns
        self.depth = 0
        """Levels drafted."""
        self.nodes = list[Grown]()
        self.frontier = [-1]
        """Nodes of the last level that get children; -1 is the prefix's last token."""
        self._above = [root(drafting.sampling, job.sampled)]
        self._paths = list[float]()
        self._rows, self._job, self._drafting = iter(rows), job, drafting
        self._draws = drafting.draws(prefix.sequence)
        self._forwarded = {-1: -1}
        """Tree node index -> index of its forwarded row."""

    @property
    def grows(self) -> bool:
        """Whether the tree gets one more level."""
        return self.depth < self.levels and bool(self.frontier)

    def level(self) -> Tree:
        """Return the frontier as rows of the next forward, (tokens, parents' rows in the tree)."""
        rows, nodes = self._forwarded, [self.nodes[i] for i in self.frontier]
        level = tuple(node.id for node in nodes), tuple(rows[node.parent] for node in nodes)
        rows |= {node: len(rows) - 1 + i for i, node in enumerate(self.frontier)}
        return level

    def add(self, level: Level, forward: int) -> None:
        """Add a level.

        Args:
            level: The rows after the frontier.
            forward: Number of the job's forward that computed them.
        """
        job, drafting, columns = self._job, self._drafting, self._columns
        nodes = next_level(
            level,
            self._above,
            job.shape,
            position=len(self.prefix) + self.depth,
            sampling=drafting.sampling,
            draws=self._draws,
            sampled=job.sampled,
        )
        lines = [line(node.parent, level.q) for node in nodes]
        drawn = job.sampled and not drafting.sampling.greedy
        slab_rows = {i: next(self._rows) for i in dict.fromkeys(lines)} if drawn else {}
        for i, row in slab_rows.items():
            drafting.write(row, columns.spread(level.q[i], drafting.vocab_size))
        tops = [tuple((columns.token(c), p) for c, p in top[:TOP]) for top in level.tops]
        first = len(self.nodes)
        for node, i in zip(nodes, lines, strict=True):
            token, parent = columns.token(node.token), self.frontier[node.parent]
            p = level.probability(i, node.token)
            self.nodes.append(Grown(token, parent, self.depth, slab_rows.get(i, -1), p, tops[i], forward))
        self.depth += 1
        self._paths += [node.path for node in nodes]
        onward = job.shape.onward(nodes)
        self._above = [nodes[i] for i in onward]
        self.frontier = [first + i for i in onward]

    def kept(self) -> tuple[Grown, ...]:
        """Return the nodes that the shape keeps, with parents as indices into them."""
        kept = self._job.shape.kept(self._paths)
        number = {-1: -1} | {old: new for new, old in enumerate(kept)}
        return tuple(self.nodes[old]._replace(parent=number[self.nodes[old].parent]) for old in kept)


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
    if head is None:
        columns, most = Columns(), job.levels
        source: LevelLogits = _model_levels(forwards, job, drafting.partners, stamps)
    else:
        packed = PackedForwards(forwards, job.model, stamps, job.unread)
        columns, source = head.columns, head.draft(packed)
        known = map(packed.begin, job.prefixes)
        most = [count if begins else 0 for count, begins in zip(job.levels, known, strict=True)]
    trees = [
        TreeBuilder(*tree, job, drafting, columns) for tree in zip(job.prefixes, most, job.rows, strict=True)
    ]
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
    fuzzy = Fuzzy(layer_groups(depth, job.fuzzy), partners) if depth and job.fuzzy > 1 else None
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
            rows = forwards.extend(job.model, prefixes, drafts, self._stamps, kind, fuzzy=fuzzy)
            return gathered(forwards.models[job.model].vocabulary, rows, self._stamps)
        rows = forwards.branch(
            job.model,
            prefixes,
            [tree.level() for tree in trees],
            self._stamps,
            "draft",
            fuzzy=self._fuzzy,
            provisional=self._calibrates,
        )
        return gathered(forwards.models[job.model].vocabulary, rows, self._stamps)
