"""The places of a draft's nodes: rows of the verification, known before the tokens are.

Row 0 is that of the prefix's last token, row i + 1 that of node i. A chain is a tree with one child
per node.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache


class Places:
    """Rows of a tree.

    Args:
        parents: The row of each node's parent, by level, siblings together.
    """

    def __init__(self, parents: Sequence[int]) -> None:
        self.parents = tuple(parents)
        depths, children = [0], [list[int]() for _ in range(len(self.parents) + 1)]
        for row, parent in enumerate(self.parents, 1):
            depths.append(depths[parent] + 1)
            children[parent].append(row)
        self.depths = tuple(depths)
        """Of each row: tokens after the prefix's last one."""
        self.children = tuple(map(tuple, children))
        """Of each row: the rows of its children."""
        self.depth = max(depths)
        self.inner = tuple(row for row, below in enumerate(children) if below)
        """The P rows with children."""
        self.most_children = max(map(len, children))
        self.levels = tuple(
            tuple(row for row, depth in enumerate(depths) if depth == level)
            for level in range(1, self.depth + 1)
        )
        """The rows of each level."""

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def is_chain(self) -> bool:
        return self.most_children < 2

    def ancestors(self) -> list[list[bool]]:
        """Return whether each row is another one, or descends from it, (n + 1, n + 1)."""
        seen = [[True, *[False] * len(self)]]
        for row, parent in enumerate(self.parents, 1):
            seen.append([above or other == row for other, above in enumerate(seen[parent])])
        return seen


@lru_cache
def places_of(plans: tuple[tuple[tuple[int, ...], tuple[int, ...] | int], ...]) -> Places | None:
    """Return the places of levels; None if which nodes get children is not fixed.

    Each level has counts and onward nodes, as `specscope.engine.drafting.tree.LevelPlan`.
    """
    parents, above = list[int](), [0]
    for counts, onward in plans:
        if isinstance(onward, int):
            return None
        first = len(parents) + 1
        parents += [row for row, count in zip(above, counts, strict=True) for _ in range(count)]
        above = [first + node for node in onward]
    return Places(parents)
