"""Assisted generation: the draft length follows the last round; a draft ends at an uncertain token.

Source: assisted generation of transformers (Gante 2023), PEARL's baseline (section 4).

Lossless. After a round that accepts the whole draft the next draft is 2 tokens longer, otherwise 1
shorter. A draft ends early after a token to which the drafter gives a low probability. That token
stays in the draft: dropping it would favour likely tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.layout import Layout, Separate
from engine.methods.common import chain_drafts
from engine.methods.registry import method, setting

if TYPE_CHECKING:
    from engine.run.run import Run

LONGER, SHORTER = 2, 1
"""Tokens by which the draft length changes."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of assisted generation."""

    start: int = setting(5, "Draft length of the first round.", low=1, high=32)
    confidence: float = setting(
        0.4,
        "End a draft after a token whose probability under the drafter is lower; 0 never ends it early.",
        low=0,
        high=1,
    )
    drafts: str = chain_drafts()


@method(
    title="Assisted generation",
    source="Gante 2023, as in PEARL",
    config=Config,
    layout=lambda _: Layout(Separate(turns=True)),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft, verify, adapt the draft length; until the run is done."""
    length, sampled = cfg.start, cfg.drafts == "sampled"
    while not run.done:
        draft = await run.drafter.propose(run.x, length, sampled=sampled, stop_below=cfg.confidence)
        verdict = await run.target.verify(run.x, draft)
        length = length + LONGER if verdict.all_accepted else max(1, length - SHORTER)
        run.commit(verdict)
