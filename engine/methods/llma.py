"""LLMA: draft by copying what followed the last tokens before, in the prompt, the output or a reference text.

Source: LLMA (Yang et al. 2023, arXiv:2304.04487), the base method of EMS-SD (section 4.1). Lossless.
No drafter: a copy is a function of the prefix. Where nothing matches, the round is one plain target forward.
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
    """Settings of LLMA."""

    match: int = setting(
        2, "Match length: copy where at least this many of the last tokens stand.", low=1, high=16
    )
    copy: int = setting(7, "Copy length: tokens copied at most before each verification.", low=1, high=32)
    reference: str = setting(
        "", "A text to copy from besides the prompt and the output; the models do not read it.", high=100_000
    )


@method(title="LLMA", source="LLMA (2023), as in EMS-SD", config=Config, uses=("target",))
async def decode(run: Run, cfg: Config) -> None:
    """Copy, verify, commit, until the run is done."""
    documents = [run.document(cfg.reference)] if cfg.reference else []
    copier = Copier(documents, cfg.match, cfg.copy)
    while not run.done:
        draft = copier.draft(run.x.tokens, run.room)
        run.commit(await run.target.verify(run.x, draft))
