"""MTP: the target's own layer for multi-token prediction drafts gamma tokens, one after the other.

Source: DeepSeek-V3 (2024, arXiv:2412.19437), section 2.2; one layer, repeated, as servers run it.

Lossless. The layer reads the last token and the target's last state; its output is q's state, and
stands for the target's state in the row of the next drafted token. The target verifies the chain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specscope.engine.drafting.planner import best_tree
from specscope.engine.methods.common import (
    GAMMA,
    LONGEST,
    chain_cut,
    chain_drafts,
    decode_chains,
    draft_length,
    head_layout,
)
from specscope.engine.methods.registry import Situation, method
from specscope.engine.run.run import Run
from specscope.engine.types import check_range

HEAD = "mtp"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of MTP."""

    gamma: int = draft_length("tokens")
    confidence: float = chain_cut()
    drafts: str = chain_drafts()


def plan(cfg: Config, situation: Situation) -> Config:
    """Choose gamma where it is 0; UsageError if the head has a layer for each place, and fewer."""
    own = situation.head_levels(HEAD)
    levels = own or LONGEST
    if own:
        check_range("gamma", cfg.gamma, 0, own)
    if cfg.gamma:
        return cfg
    chosen = situation.planned({"gamma": levels}, best_tree)
    return replace(cfg, gamma=min(GAMMA, levels) if chosen is None else chosen.levels)


@method(
    title="MTP",
    source="DeepSeek-V3 (2024), section 2.2",
    config=Config,
    plan=plan,
    layout=lambda _: head_layout(HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    await decode_chains(run, cfg)
