"""Suffix hybrid: in each round the suffix trees draft or the drafter, whichever should bring more.

Source: SuffixDecoding (Oliaro et al. 2025, arXiv:2411.04975), its hybrid with a drafter.

Lossless. Before a round drafts, the score of the suffix trees' best draft is compared with the mean
number of accepted tokens of the drafter's earlier drafts in this sequence. The drafter takes its
most probable tokens, so that either draft is decided by rule 2: under load the choice also depends
on which texts were finished before, and the output must not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from specscope.engine.methods.common import GAMMA, Suffixes, SuffixSettings
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config(SuffixSettings):
    """Settings of the hybrid."""

    drafts: ClassVar[str] = "greedy"
    """How the drafter picks tokens, as in other methods' settings."""
    gamma: int = setting(GAMMA, "Draft length of the drafter.", low=1, high=32, role="length")
    weigh: str = setting(
        "tokens",
        "What the drafts are compared by: tokens per round, or tokens per second, where the drafter's time counts.",
        choices=("tokens", "seconds"),
    )
    c: float = setting(
        0.0,
        "T(target) / T(drafter) for tokens per second.",
        low=0.01,
        high=10_000,
        auto="measured",
    )


def plan(cfg: Config, situation: Situation) -> Config:
    """Measure c where it is 0 and needed."""
    return cfg if cfg.c or cfg.weigh == "tokens" else replace(cfg, c=situation.c())


@method(title="Suffix hybrid", source="SuffixDecoding (NeurIPS 2025)", config=Config, plan=plan)
async def decode(run: Run, cfg: Config) -> None:
    suffixes, rounds, accepted = Suffixes(run, cfg), 1, cfg.gamma
    while not run.done:
        expected = accepted / rounds
        draft = suffixes.draft((1 + expected) / _duration(cfg) - 1, drafter=expected)
        if draft:
            run.commit(await run.target.verify(run.x, draft))
            continue
        proposed = await run.drafter.propose(run.x, cfg.gamma, sampled=False)
        verdict = await run.target.verify(run.x, replace(proposed, rows=draft.rows))
        run.commit(verdict)
        rounds, accepted = rounds + 1, accepted + len(verdict.accepted)
    suffixes.finish()


def _duration(cfg: Config) -> float:
    """Return the time of a round with the drafter over that of a round without one."""
    return 1 + cfg.gamma / cfg.c if cfg.weigh == "seconds" else 1.0
