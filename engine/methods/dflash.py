"""DFlash: one forward of a block drafter drafts gamma tokens; the target verifies them as a chain.

Source: DFlash (Chen et al. 2026, arXiv:2602.06036); the cut-off by confidence is DSpark's idea.

Lossless. The drafter reads states of several target layers, which are keys and values of each of
its own layers, and a block: the last token and gamma masks, which see each other in both
directions. The q of a place depends on the prefix only, whatever is drawn before it, so the ratio
rule is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specscope.engine.drafting.planner import best_tree
from specscope.engine.methods.common import chain_cut, chain_drafts, decode_chains, head_layout, planned
from specscope.engine.methods.registry import Situation, method
from specscope.engine.run.run import Run
from specscope.engine.types import check_range

HEAD = "dflash"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of DFlash."""

    gamma: int = planned(
        "Draft length: places of the block that are drafted; 0 plans it from measured cost, and is the head's "
        "block where nothing is planned.",
        64,
        role="length",
    )
    confidence: float = chain_cut()
    drafts: str = chain_drafts()


def plan(cfg: Config, situation: Situation) -> Config:
    """Choose gamma where it is 0; UsageError if the head's block is shorter."""
    levels = situation.head_levels(HEAD)
    check_range("gamma", cfg.gamma, 0, levels)
    if cfg.gamma:
        return cfg
    chosen = situation.planned({"gamma": levels}, best_tree)
    return replace(cfg, gamma=levels if chosen is None else chosen.levels)


@method(
    title="DFlash",
    source="DFlash (2026)",
    config=Config,
    plan=plan,
    layout=lambda _: head_layout(HEAD, at_once=True),
)
async def decode(run: Run, cfg: Config) -> None:
    await decode_chains(run, cfg)
