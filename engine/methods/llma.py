"""LLMA: draft by copying the continuation of an earlier occurrence of the last tokens.

Source: LLMA (Yang et al. 2023, arXiv:2304.04487), the base method of EMS-SD (section 4.1).

Lossless. It copies from the prompt, the output or a reference text; no drafter runs. A copy is a
function of the prefix: rule 2. A round without a match is one plain target forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from specscope.engine.drafting.copy import Copier
from specscope.engine.methods.common import decode_copies
from specscope.engine.methods.registry import method, setting
from specscope.engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of LLMA."""

    match: int = setting(
        2, "Match length: the fewest of the last tokens that must occur earlier.", low=1, high=16
    )
    copy: int = setting(
        7, "Copy length: most tokens copied before each verification.", low=1, high=32, role="copies"
    )
    reference: str = setting(
        "",
        "A text to copy from besides prompt and output; the models do not read it.",
        high=100_000,
    )


@method(title="LLMA", source="LLMA (2023), as in EMS-SD", config=Config, uses=("target",))
async def decode(run: Run, cfg: Config) -> None:
    documents = [run.document(cfg.reference)] if cfg.reference else []
    await decode_copies(run, Copier(documents, cfg.match, cfg.copy))
