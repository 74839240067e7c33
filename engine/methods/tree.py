"""Token trees: the drafter drafts several continuations; one target forward verifies them all.

Source: SpecInfer (Miao et al. 2024, arXiv:2305.09781), tree-based verification; EasySpec's +tree.

Lossless. Rule 1 judges sampled trees, sibling after sibling with the exact residual; rule 2 judges
trees of the most probable paths. The KV rows of the accepted path are kept, all others are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.tree import Wide
from engine.layout import Layout, Separate
from engine.methods.common import check_nodes, decode_trees, tree_drafts
from engine.methods.registry import method, setting

if TYPE_CHECKING:
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of token trees."""

    width: int = setting(
        4, "Largest number of nodes per level; width times depth is at most 64.", low=1, high=16
    )
    depth: int = setting(5, "Levels: tokens of the longest path.", low=1, high=32)
    drafts: str = tree_drafts()

    def __post_init__(self) -> None:
        check_nodes(self.width, self.depth, "depth")


@method(
    title="Token tree",
    source="SpecInfer (2024), as in EasySpec",
    config=Config,
    layout=lambda _: Layout(Separate(turns=True)),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft a tree, verify it, commit; until the run is done."""
    await decode_trees(run, Wide(cfg.width, cfg.depth), sampled=cfg.drafts == "sampled")
