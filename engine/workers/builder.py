"""A tree that grows level by level, and the needs of its growth besides the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from engine.drafters.level import Level, drawn, next_level
from engine.drafters.tree import Node, line, root
from engine.draws import TOP, Draws
from engine.heads.drafting import Columns
from engine.model.fuzzy import DeviceGroup, SingleDevice
from engine.types import Prefix, Sampling, Tree
from engine.workers.jobs import Grow
from engine.workers.replies import Grown


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
        nodes = next_level(
            level,
            self._above,
            self._job.shape,
            position=len(self.prefix) + self.depth,
            sampling=self._drafting.sampling,
            draws=self._draws,
            sampled=self._job.sampled,
        )
        self._place(level, nodes, forward)

    def add_best(self, level: Level, forward: int) -> None:
        """Add a level of most probable tokens; see `add`."""
        self._place(level, self._job.shape.best(level.tops, self._above), forward)

    def add_drawn(self, level: Level, children: Sequence[Sequence[int]], forward: int) -> None:
        """Add a level whose columns are drawn: the children of each node of the frontier."""
        self._place(level, drawn(children, self._above), forward)

    def _place(self, level: Level, nodes: Sequence[Node], forward: int) -> None:
        job, drafting, columns = self._job, self._drafting, self._columns
        lines = [line(node.parent, level.q) for node in nodes]
        sampled = job.sampled and not drafting.sampling.greedy
        slab_rows = {i: next(self._rows) for i in dict.fromkeys(lines)} if sampled else {}
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
