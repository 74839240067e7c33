"""Token trees: the drafter drafts several continuations; one target forward verifies them all.

Source: SpecInfer (Miao et al. 2024, arXiv:2305.09781), tree-based verification; EasySpec's +tree.

Lossless. Rule 1 judges sampled trees, sibling after sibling with the exact residual; rule 2 judges
trees of the most probable paths. The KV rows of the accepted path are kept, all others are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from specscope.engine.drafting.planner import best_wide
from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.drafting.tree import Wide
from specscope.engine.methods.common import check_nodes, decode_trees, planned, tree_drafts
from specscope.engine.methods.registry import Situation, method
from specscope.engine.run.run import Run

PAPER = {"width": 4, "depth": 5}
"""The tree where nothing is planned."""
PLANNED = {"width": 4, "depth": 6}
"""The tree of runs that measure acceptance, and the largest planned one."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of token trees."""

    width: int = planned(
        "Largest number of nodes per level; width times depth is at most 64. 0 plans it from measured cost, "
        f"and is {PAPER['width']} where nothing is planned.",
        high=16,
        paper=PAPER["width"],
    )
    depth: int = planned(
        "Levels: tokens of the longest path; 0 plans them from measured cost, and is "
        f"{PAPER['depth']} where nothing is planned.",
        high=32,
        paper=PAPER["depth"],
        role="length",
    )
    drafts: str = tree_drafts()

    def __post_init__(self) -> None:
        check_nodes(self.width, self.depth, "depth")


def plan(cfg: Config, situation: Situation) -> Config:
    if cfg.width and cfg.depth:
        return cfg
    probe = {**asdict(cfg), **_within(cfg, PLANNED)}
    chosen = situation.planned(probe, partial(best_wide, width=cfg.width, levels=cfg.depth))
    if chosen is None:
        return replace(cfg, **_within(cfg, PAPER))
    return replace(cfg, width=chosen.width, depth=cfg.depth or chosen.levels)


def _within(cfg: Config, usual: Mapping[str, int]) -> dict[str, int]:
    """Return width and depth, the usual ones where they are 0, with at most `MOST_NODES` nodes."""
    width = cfg.width or min(usual["width"], MOST_NODES // (cfg.depth or 1))
    return {"width": width, "depth": cfg.depth or min(usual["depth"], MOST_NODES // width)}


@method(
    title="Token tree",
    source="SpecInfer (2024), as in EasySpec",
    config=Config,
    plan=plan,
)
async def decode(run: Run, cfg: Config) -> None:
    await decode_trees(run, Wide(cfg.width, cfg.depth), sampled=cfg.drafts == "sampled")
