"""EAGLE-2: EAGLE's layer with a dynamic tree, which grows where the layer is confident.

Source: EAGLE-2 (Li et al. 2024, arXiv:2406.16858), as in EasySpec; the same heads as EAGLE.

Lossless. Each expanded node of a level gets its `top` most probable children; of all these
children, the `top` with the largest path probability are expanded next. After `depth` levels the
`total` nodes with the largest path probability are verified. The tree is a function of the prefix:
rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.static import MOST_NODES
from engine.drafters.tree import Dynamic
from engine.errors import UsageError
from engine.methods.common import decode_trees, head_layout
from engine.methods.registry import Situation, method, setting

if TYPE_CHECKING:
    from engine.run.run import Run

HEAD = "eagle"
MOST_ROWS = 80
"""Most expanded nodes of a tree: KV rows of the layer in addition to the text's."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EAGLE-2."""

    top: int = setting(10, "Children per expanded node, and expanded nodes per level.", low=1, high=16)
    depth: int = setting(6, "Levels: forwards of the layer per round.", low=1, high=16)
    total: int = setting(
        59, "Nodes to verify: those with the largest path probability.", low=1, high=MOST_NODES
    )

    def __post_init__(self) -> None:
        rows = self.top * (self.depth - 1)
        if rows > MOST_ROWS:
            raise UsageError(
                f"top {self.top} times depth {self.depth} less 1 is {rows} nodes with children; it must "
                f"be at most {MOST_ROWS}: with this top depth is at most {MOST_ROWS // self.top + 1}"
            )


def plan(cfg: Config, situation: Situation) -> Config:
    """Check that the pair has the head.

    Raises:
        UsageError: The head is missing, or does not fit the target.
    """
    situation.head_levels(HEAD)
    return cfg


@method(
    title="EAGLE-2",
    source="EAGLE-2 (2024), as in EasySpec",
    config=Config,
    plan=plan,
    layout=lambda _: head_layout(HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    """Grow a dynamic tree, verify its best nodes, commit; until the run is done."""
    await decode_trees(run, Dynamic(cfg.top, cfg.depth, cfg.total), sampled=False)
