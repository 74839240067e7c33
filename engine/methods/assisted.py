"""Assisted generation: a draft ends at an uncertain token, or its length follows the last round.

Source: assisted generation of transformers (Gante 2023); with its first schedule PEARL's baseline
(section 4).

Lossless. A draft ends early after a token to which the drafter gives a low probability. That token
stays in the draft: dropping it would favour likely tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specscope.engine.drafting.schedule import Schedule, fixed, heuristic
from specscope.engine.methods.common import chain_drafts
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run

OWN = {"heuristic": (5, 0.0), "constant": (20, 0.4)}
"""Start and confidence of each schedule: of transformers' first releases, and of transformers 5."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of assisted generation."""

    schedule: str = setting(
        "heuristic",
        "heuristic: 2 tokens more after a fully accepted draft, else 1 fewer, as in PEARL's baseline. "
        "constant: always `start`, transformers' present default.",
        choices=("heuristic", "constant"),
    )
    start: int = setting(
        0,
        "Draft length of the first round; 0 is the schedule's own: 5, or 20 if constant.",
        low=1,
        high=32,
        auto="the schedule's",
    )
    confidence: float = setting(
        0.0,
        "End a draft after a token whose probability under the drafter is lower; 0 is the schedule's own: "
        "never, or 0.4 if constant.",
        low=0,
        high=1,
        role="cut",
    )
    drafts: str = chain_drafts()


def plan(cfg: Config, _: Situation) -> Config:
    """Replace a start and a confidence of 0 by the schedule's own."""
    start, confidence = OWN[cfg.schedule]
    return replace(cfg, start=cfg.start or start, confidence=cfg.confidence or confidence)


@method(
    title="Assisted generation",
    source="Gante 2023, as in PEARL",
    config=Config,
    plan=plan,
)
async def decode(run: Run, cfg: Config) -> None:
    rule = heuristic if cfg.schedule == "heuristic" else fixed
    schedule = Schedule(cfg.start, rule, stop_below=cfg.confidence)
    while not run.done:
        draft = await run.drafter.propose(run.x, schedule.next(), sampled=cfg.drafts == "sampled")
        verdict = await run.target.verify(run.x, draft)
        schedule.learn(verdict)
        run.commit(verdict)
