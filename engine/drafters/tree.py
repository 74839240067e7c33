"""Which nodes a token tree has: chosen level by level (`engine/drafters/level.py`) from the drafter's rows, by pure functions.

A shape says how many children each node gets:

- `Wide`: a level holds at most `width` nodes, wherever in the level above their parents stand. Source: SpecInfer (Miao et
  al. 2024), token trees of a small model; a fixed width per level as in EasySpec's ablation (section 5).
- `Static`: the same tree every time (Medusa, Cai et al. 2024; EAGLE, Li et al. 2024; `engine/drafters/static.py` reads files).
- `Dynamic`: the most probable nodes of a level get children, and of all nodes the most probable stay (EAGLE-2, Li et al. 2024).

A tree that is a function of the prefix (rule 2) holds what the drafter finds most probable. A sampled tree (rule 1) draws the
children of a node from its warped q without replacement. How many a node gets is fixed by the shape above it and by how
many tokens its q allows at all, before any of them is drawn: so the draws are those of q, whatever was drawn elsewhere.
A sampled `Wide` keeps the places that need the fewest rejections to be reached (the i-th child of a node is tested after i
rejections). If every test of a sibling accepts with one and the same probability, whatever it is, no other `width` places
of a level are reached more often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from engine.types import Sampling

if TYPE_CHECKING:
    from torch import Tensor


class Node(NamedTuple):
    """One node of a level."""

    parent: int
    """Index of its parent among the nodes above that got children; 0 is the prefix's last token for the first level."""
    token: int
    path: float
    """Of a tree that is a function of the prefix: the drafter's probability of the path to it. Of a sampled one: minus
    the rejections on the way to it. Larger is better."""
    ranks: tuple[int, ...] = ()
    """Where it stands: (0, 2) is the third child of the first child."""


class TreeShape(Protocol):
    """How a tree grows."""

    @property
    def depth(self) -> int:
        """Levels at most."""
        ...

    @property
    def parents(self) -> int:
        """Nodes with children at most, the prefix's last token among them."""
        ...

    def counts(self, above: Sequence[Node], support: Sequence[int]) -> list[int]:
        """Return how many children each node above gets in a sampled tree.

        Args:
            above: The R nodes that get children.
            support: Tokens of positive q after each, (R,): it cannot have more children.
        """
        ...

    def best(self, q: Tensor, above: Sequence[Node]) -> list[Node]:
        """Return the children in a tree that is a function of the prefix; q is (R, V), or (1, V) for all of them."""
        ...

    def onward(self, nodes: Sequence[Node]) -> list[int]:
        """Return which nodes of a level get children, in order."""
        ...

    def kept(self, paths: Sequence[float]) -> list[int]:
        """Return which nodes of the grown tree stay, given the value of each node's path; parents come before children."""
        ...


def root(sampling: Sampling, sampled: bool) -> Node:
    """Return what stands above the first level: the prefix's last token."""
    return Node(0, -1, 0.0 if sampled and not sampling.greedy else 1.0)


def line(parent: int, q: Tensor) -> int:
    """Return which row of q the children of a node come from."""
    return min(parent, len(q) - 1)


@dataclass(frozen=True, slots=True)
class Wide:
    """At most so many nodes per level."""

    width: int
    depth: int

    @property
    def parents(self) -> int:
        """Every node of all levels but the last."""
        return 1 + self.width * (self.depth - 1)

    def counts(self, above: Sequence[Node], support: Sequence[int]) -> list[int]:
        """Return the `width` places that need the fewest rejections; of equal ones those of earlier parents."""
        places = sorted(
            (child - node.path, parent)
            for parent, (node, most) in enumerate(zip(above, support, strict=True))
            for child in range(min(self.width, most))
        )[: self.width]
        kept = [parent for _, parent in places]
        return [kept.count(parent) for parent in range(len(above))]

    def best(self, q: Tensor, above: Sequence[Node]) -> list[Node]:
        """Keep the most probable paths; of equally probable ones those of the earlier parent, then of the lower token id."""
        exact, size = q.double(), q.shape[1]
        paths = (exact * exact.new_tensor([node.path for node in above])[:, None]).flatten()
        nodes = [Node(at // size, at % size, path) for at, path in _largest(paths, self.width)]
        return sorted(nodes, key=lambda node: node.parent)

    def onward(self, nodes: Sequence[Node]) -> list[int]:
        """Return all of them."""
        return list(range(len(nodes)))

    def kept(self, paths: Sequence[float]) -> list[int]:
        """Return all of them."""
        return list(range(len(paths)))


@dataclass(frozen=True, slots=True)
class Static:
    """The same tree every time; nodes for which there is no token (a small vocabulary, a narrow q) are missing."""

    paths: tuple[tuple[int, ...], ...]
    """Every node, as ranks: (0, 2) is the third child of the first child."""

    @property
    def depth(self) -> int:
        """Levels."""
        return max(map(len, self.paths))

    @property
    def parents(self) -> int:
        """Nodes with children."""
        return len(_children(self.paths))

    def cut(self, depth: int) -> Static:
        """Return its first levels."""
        return Static(tuple(path for path in self.paths if len(path) <= depth))

    def counts(self, above: Sequence[Node], support: Sequence[int]) -> list[int]:
        """Return what the tree says, as far as there are tokens."""
        wanted = _children(self.paths)
        return [min(wanted[node.ranks], most) for node, most in zip(above, support, strict=True)]

    def best(self, q: Tensor, above: Sequence[Node]) -> list[Node]:
        """Return the most probable tokens after each node; of equally probable ones the lower ids."""
        wanted = [_children(self.paths)[node.ranks] for node in above]
        return _best_of_each(q, above, wanted)

    def onward(self, nodes: Sequence[Node]) -> list[int]:
        """Return those that have children."""
        return [i for i, node in enumerate(nodes) if node.ranks in _children(self.paths)]

    def kept(self, paths: Sequence[float]) -> list[int]:
        """Return all of them."""
        return list(range(len(paths)))


@lru_cache
def _children(paths: tuple[tuple[int, ...], ...]) -> Mapping[tuple[int, ...], int]:
    """Return how many children each node has, for those that have any; () is the prefix's last token."""
    return Counter(path[:-1] for path in paths)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """EAGLE-2: the most probable nodes of a level get children, and of all nodes the most probable stay."""

    top: int
    """Children of a node, and nodes of a level that get children."""
    depth: int
    total: int
    """Nodes that stay."""

    @property
    def parents(self) -> int:
        """Nodes that get children."""
        return 1 + self.top * (self.depth - 1)

    def counts(self, above: Sequence[Node], support: Sequence[int]) -> list[int]:  # noqa: ARG002
        """Raise: which nodes stay depends on the tokens drawn, so such a tree cannot be sampled from q."""
        raise ValueError("a dynamic tree is a function of the prefix; it cannot be sampled")

    def best(self, q: Tensor, above: Sequence[Node]) -> list[Node]:
        """Return the most probable tokens after each node."""
        return _best_of_each(q, above, [self.top] * len(above))

    def onward(self, nodes: Sequence[Node]) -> list[int]:
        """Return the most probable paths; of equally probable ones those drafted first."""
        return _first(self.top, [node.path for node in nodes])

    def kept(self, paths: Sequence[float]) -> list[int]:
        """Return the most probable paths. A parent's is no less probable than its child's and comes first, so it stays, too."""
        return _first(self.total, paths)


def _first(count: int, values: Sequence[float]) -> list[int]:
    """Return where the largest values stand, rising; of equal ones the first."""
    return sorted(sorted(range(len(values)), key=lambda i: -values[i])[:count])


def _best_of_each(q: Tensor, above: Sequence[Node], counts: Sequence[int]) -> list[Node]:
    """Return the most probable children of each node."""
    rows = _largest_of_each(q, max(counts))
    return [
        Node(parent, token, node.path * min(1.0, value), (*node.ranks, rank))
        for parent, (node, count) in enumerate(zip(above, counts, strict=True))
        for rank, (token, value) in enumerate(rows[line(parent, q)][:count])
    ]


def _largest_of_each(q: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """Return `_largest` of each row. One call for all rows says which values they are, but not the order of equal ones."""
    values, ids = q.topk(min(count + 1, q.shape[1]))
    tied = (values[:, 1:] == values[:, :-1]).any(-1).tolist()
    found = zip(ids.tolist(), values.tolist(), strict=True)
    each = [[(i, v) for i, v in zip(*row, strict=True) if v > 0][:count] for row in found]
    return [_largest(q[i], count) if tied[i] else row for i, row in enumerate(each)]


def _largest(values: Tensor, count: int) -> list[tuple[int, float]]:
    """Return where the largest positive values stand, and what they are, falling; of equal ones the first."""
    least = values.topk(min(count, len(values))).values[-1]
    found = ((values >= least) & (values > 0)).nonzero()[:, 0]  # rising: ties stay in the order asked for
    best = found[values[found].sort(descending=True, stable=True).indices[:count]]
    return list(zip(best.tolist(), values[best].tolist(), strict=True))
