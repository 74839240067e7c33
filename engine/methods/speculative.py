"""Speculative decoding: draft gamma tokens, verify all of them in one target forward.

Source: Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1; Chen et al. 2023 (arXiv:2302.01318).

Lossless. A round emits the n accepted tokens and one token of the target: the correction if n <
gamma, else the bonus.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specscope.engine.drafting.planner import best_tree
from specscope.engine.methods.common import (
    GAMMA,
    LONGEST,
    chain_confidence,
    chain_drafts,
    chain_off,
    chain_schedule,
    draft_length,
    own_confidence,
    schedule_of,
)
from specscope.engine.methods.registry import Situation, method
from specscope.engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of speculative decoding."""

    gamma: int = draft_length("tokens")
    drafts: str = chain_drafts()
    schedule: str = chain_schedule()
    confidence: float = chain_confidence()
    off_below: float = chain_off()


def plan(cfg: Config, situation: Situation) -> Config:
    """Choose gamma where it is 0: the chain with the most predicted tokens per second."""
    cfg = own_confidence(cfg)
    if cfg.gamma:
        return cfg
    chosen = situation.planned({"gamma": LONGEST}, best_tree)
    return replace(cfg, gamma=GAMMA if chosen is None else chosen.levels)


@method(
    title="Speculative decoding",
    source="Leviathan et al. 2023, algorithm 1",
    config=Config,
    plan=plan,
)
async def decode(run: Run, cfg: Config) -> None:
    schedule = schedule_of(cfg)
    while not run.done:
        draft = await run.drafter.propose(run.x, schedule.next(), sampled=cfg.drafts == "sampled")
        verdict = await run.target.verify(run.x, draft)
        schedule.learn(verdict)
        run.commit(verdict)
