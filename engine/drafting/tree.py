"""Shapes of token trees: pure functions that choose a level's nodes from the drafter's rows.

A shape decides how many children each node gets (`engine/drafting/level.py` grows the levels):

- `Wide`: at most `width` nodes per level, with any parents. Source: SpecInfer (Miao et al. 2024),
  token trees of a small model; a fixed width per level as in EasySpec's ablation (section 4.4).
- `Static`: always the same tree (Medusa, Cai et al. 2024; EAGLE, Li et al. 2024); `static.py` reads
  the files.
- `Dynamic`: the most probable nodes of a level get children, and the most probable nodes of the
  whole tree are kept (EAGLE-2, Li et al. 2024).
- `Branches`: a chain, or several from one place, each until the drafter is unsure (SpecBranch, Shen
  et al. 2026).

A tree that is a function of the prefix (rule 2) holds the drafter's most probable tokens. A sampled
tree (rule 1) draws a node's children from its q without replacement. The number of children
depends on the shape and on the numbers in q, and is fixed before any of them is drawn: so the draws
have the distribution q, independent of all other draws.

A sampled `Wide` keeps the places that are reached after the fewest rejections: the i-th child of a
node is tested after i rejections. If every test accepts with the same probability, this choice of
`width` places is the one reached most often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import lru_cache
from math import floor
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from specscope.engine.types import Sampling

if TYPE_CHECKING:
    from specscope.engine.sampling.draws import Top

Ranks: TypeAlias = tuple[int, ...]
"""A node's ranks from the first level on: (0, 2) is the third child of the first child."""


class Node(NamedTuple):
    """One node of a level."""

    parent: int
    """Index of its parent among the nodes above that got children; 0 in the first level."""
    token: int
    path: float
    """Larger is better. In a tree that is a function of the prefix: the drafter's probability of
    the path to this node. In a sampled tree: minus the rejections before it is tested."""
    ranks: Ranks = ()


class LevelPlan(NamedTuple):
    """The places of a level's nodes, which are known before the tokens."""

    counts: tuple[int, ...]
    """Children of each node above that gets some; fewer if its q has fewer tokens."""
    onward: tuple[int, ...] | int
    """Which of the level's nodes get children, rising; or how many: the most probable paths."""
    most: int = 0
    """The level's nodes at most: the best places (`Wide`); 0 for all."""

    @property
    def nodes(self) -> int:
        return min(sum(self.counts), self.most or sum(self.counts))

    @property
    def onward_count(self) -> int:
        return min(self.onward, self.nodes) if isinstance(self.onward, int) else len(self.onward)


def root(sampling: Sampling, sampled: bool) -> Node:
    return Node(0, -1, 0.0 if sampled and not sampling.greedy else 1.0)


def line(parent: int, rows: Sized) -> int:
    """Return the index of the row of a node's children; a single row serves all nodes."""
    return min(parent, len(rows) - 1)


def _all(_: object, nodes: Sized) -> list[int]:
    return list(range(len(nodes)))


@dataclass(frozen=True, slots=True)
class Wide:
    """At most `width` nodes per level."""

    total: ClassVar[int] = 0
    onward = kept = _all
    width: int
    depth: int

    @property
    def parents(self) -> int:
        """The prefix's last token, and the nodes of all levels except the last."""
        return 1 + self.width * (self.depth - 1)

    @property
    def children(self) -> int:
        return self.width

    def counts(self, above: Sequence[Node], support: Sequence[int], _: Sequence[Top] = ()) -> list[int]:
        """Count the `width` places with the fewest rejections; on ties, earlier parents first."""
        places = sorted(
            (child - node.path, parent)
            for parent, (node, most) in enumerate(zip(above, support, strict=True))
            for child in range(min(self.width, most))
        )[: self.width]
        parents = [parent for _, parent in places]
        return [parents.count(parent) for parent in range(len(above))]

    def best(self, tops: Sequence[Top], above: Sequence[Node]) -> list[Node]:
        """Return the most probable paths; on ties, earlier parents, then lower ids first."""
        paths = sorted(
            (-node.path * min(1.0, value), parent, token)
            for parent, node in enumerate(above)
            for token, value in tops[line(parent, tops)][: self.width]
        )[: self.width]
        nodes = [Node(parent, token, -path) for path, parent, token in paths if path < 0]
        return sorted(nodes, key=lambda node: node.parent)

    def plans(self, levels: int) -> tuple[LevelPlan, ...]:
        """Return the first levels; all nodes get children."""
        if self.width == 1:
            return (LevelPlan((1,), (0,)),) * min(levels, self.depth)
        width, all_ = self.width, tuple(range(self.width))
        later = LevelPlan((width,) * width, all_, width)
        return (LevelPlan((width,), all_, width), *[later] * (min(levels, self.depth) - 1))[: max(levels, 0)]


@dataclass(frozen=True, slots=True)
class Static:
    """Always the same tree, without the nodes for which q has too few tokens."""

    total: ClassVar[int] = 0
    kept = _all
    paths: tuple[Ranks, ...]

    @property
    def depth(self) -> int:
        return max(map(len, self.paths))

    @property
    def parents(self) -> int:
        return len(_children(self.paths))

    @property
    def children(self) -> int:
        return max(_children(self.paths).values())

    def cut(self, depth: int) -> Static:
        return Static(tuple(path for path in self.paths if len(path) <= depth))

    def counts(self, above: Sequence[Node], support: Sequence[int], _: Sequence[Top] = ()) -> list[int]:
        wanted = _children(self.paths)
        return [min(wanted[node.ranks], most) for node, most in zip(above, support, strict=True)]

    def best(self, tops: Sequence[Top], above: Sequence[Node]) -> list[Node]:
        """Return the most probable tokens after each node; among equals, lower ids first."""
        wanted = [_children(self.paths)[node.ranks] for node in above]
        return _best_of_each(tops, above, wanted)

    def onward(self, nodes: Sequence[Node]) -> list[int]:
        return [i for i, node in enumerate(nodes) if node.ranks in _children(self.paths)]

    def plans(self, levels: int) -> tuple[LevelPlan, ...]:
        return _plans(self.paths, levels)


@lru_cache
def _children(paths: tuple[Ranks, ...]) -> Mapping[Ranks, int]:
    """Map each node with children to their number; () is the prefix's last token."""
    return Counter(path[:-1] for path in paths)


@lru_cache
def _plans(paths: tuple[Ranks, ...], levels: int) -> tuple[LevelPlan, ...]:
    wanted, above, plans = _children(paths), [()], list[LevelPlan]()
    while above and len(plans) < levels:
        counts = tuple(wanted[ranks] for ranks in above)
        nodes = [
            (*ranks, child) for ranks, count in zip(above, counts, strict=True) for child in range(count)
        ]
        onward = tuple(i for i, ranks in enumerate(nodes) if ranks in wanted)
        plans.append(LevelPlan(counts, onward))
        above = [nodes[i] for i in onward]
    return tuple(plans)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """EAGLE-2: a level's most probable nodes get children; the most probable of all are kept."""

    top: int
    """Children per node, and nodes per level that get children."""
    depth: int
    total: int
    """Nodes that are kept."""

    @property
    def parents(self) -> int:
        return 1 + self.top * (self.depth - 1)

    @property
    def children(self) -> int:
        return self.top

    def counts(self, above: Sequence[Node], support: Sequence[int], _: Sequence[Top] = ()) -> list[int]:  # noqa: ARG002
        """Raise ValueError: which nodes are kept depends on their tokens, not on q alone."""
        raise ValueError("a dynamic tree is a function of the prefix; it cannot be sampled")

    def best(self, tops: Sequence[Top], above: Sequence[Node]) -> list[Node]:
        return _best_of_each(tops, above, [self.top] * len(above))

    def onward(self, nodes: Sequence[Node]) -> list[int]:
        return _first(self.top, [node.path for node in nodes])

    def plans(self, levels: int) -> tuple[LevelPlan, ...]:
        """Return the first levels: `top` nodes of each get children."""
        first, later = LevelPlan((self.top,), self.top), LevelPlan((self.top,) * self.top, self.top)
        return (first, *[later] * (min(levels, self.depth) - 1))[: max(levels, 0)]

    def kept(self, paths: Sequence[float]) -> list[int]:
        """Return the most probable paths; a node's parent is at least as probable and is kept."""
        return _first(self.total, paths)


@dataclass(frozen=True, slots=True)
class Branches:
    """Chains from one place; each ends before a place where the drafter is unsure.

    The confidence at a place is the largest probability in its row. With a `width` of 0 there is
    one chain, which may be empty. Else the first place, of confidence q, gets
    max(1, floor(width (1 - q))) siblings, and each of them a child.
    """

    total: ClassVar[int] = 0
    onward = kept = _all
    width: int
    depth: int
    threshold: float
    """The least confidence at the other places."""

    @property
    def parents(self) -> int:
        return 1 + self.children * (self.depth - 1)

    @property
    def children(self) -> int:
        return max(1, self.width)

    def counts(self, above: Sequence[Node], support: Sequence[int], tops: Sequence[Top]) -> list[int]:
        return [min(wanted, most) for wanted, most in zip(self._wanted(above, tops), support, strict=True)]

    def best(self, tops: Sequence[Top], above: Sequence[Node]) -> list[Node]:
        """Return the most probable tokens after each node; among equals, lower ids first."""
        return _best_of_each(tops, above, self._wanted(above, tops))

    def _wanted(self, above: Sequence[Node], tops: Sequence[Top]) -> list[int]:
        confidence, level = [tops[line(i, tops)][0][1] for i in range(len(above))], len(above[0].ranks)
        if self.width and level == 0:
            return [max(1, floor(self.width * (1 - confidence[0])))]
        return [int(q >= self.threshold or (self.width > 0 and level == 1)) for q in confidence]

    def plans(self, levels: int) -> tuple[LevelPlan, ...]:  # noqa: ARG002
        return ()


TreeShape: TypeAlias = Wide | Static | Dynamic | Branches
"""How a tree grows, at most `depth` levels.

- `parents`: the most nodes with children, the prefix's last token included; `children`: the most
  children of a node.
- `counts`: children of each of the R nodes `above` in a sampled tree; `support`, (R,), are the
  tokens of positive q after each node, an upper limit, and `tops` the most probable ones.
- `best`: the children in a tree that is a function of the prefix; `tops` are the most probable
  tokens after each node, falling; one row may serve all nodes.
- `onward`: the indices of a level's nodes that get children, rising.
- `plans`: the first levels; none if the places of their nodes are not known beforehand.
- `total`: how many nodes are kept, the best ones; 0 for all.
- `kept`: the indices of the grown tree's nodes that are kept, rising; `paths` has the `path` of
  each node, parents before children."""


def _first(count: int, values: Sequence[float]) -> list[int]:
    """Return the indices of the largest values, rising; among equals, the first."""
    return sorted(sorted(range(len(values)), key=lambda i: -values[i])[:count])


def _best_of_each(tops: Sequence[Top], above: Sequence[Node], counts: Sequence[int]) -> list[Node]:
    return [
        Node(parent, token, node.path * min(1.0, value), (*node.ranks, rank))
        for parent, (node, count) in enumerate(zip(above, counts, strict=True))
        for rank, (token, value) in enumerate(tops[line(parent, tops)][:count])
    ]
