"""Prompt lookup: draft what followed the last few tokens where they stood before, in the prompt or the output.

Source: prompt lookup decoding (Saxena 2023), ParallelSpec's baseline PLD (section 5). Lossless.
No drafter: the last 3 tokens are looked up, then the last 2, then the last one. Where nothing matches, the round is one
plain target forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.copy import Copier
from engine.methods.registry import method, setting

if TYPE_CHECKING:
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of prompt lookup."""

    ngram: int = setting(
        3,
        "Longest n-gram: so many of the last tokens are looked up, then fewer, down to one.",
        low=1,
        high=16,
    )
    copy: int = setting(10, "Tokens copied at most before each verification.", low=1, high=32)
    which: str = setting(
        "first", "Which of several matches of one length is copied.", choices=("first", "latest")
    )


@method(title="Prompt lookup", source="Saxena 2023, as in ParallelSpec", config=Config, uses=("target",))
async def decode(run: Run, cfg: Config) -> None:
    """Look up, verify, commit, until the run is done."""
    copier = Copier(match=1, longest=cfg.ngram, copy=cfg.copy, latest=cfg.which == "latest")
    while not run.done:
        draft = copier.draft(run.x.tokens, run.room)
        run.commit(await run.target.verify(run.x, draft))
