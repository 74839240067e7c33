"""Prompt lookup: draft the continuation of an earlier occurrence of the last few tokens.

Source: prompt lookup decoding (Saxena 2023), ParallelSpec's baseline PLD (section 5).

Lossless. It looks up the last 3 tokens in the prompt and the output, then the last 2, then the last
one; no drafter runs. A copy is a function of the prefix: rule 2. A round without a match is one
plain target forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from specscope.engine.drafting.copy import Copier
from specscope.engine.methods.common import decode_copies
from specscope.engine.methods.registry import method, setting
from specscope.engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of prompt lookup."""

    ngram: int = setting(
        3,
        "Longest n-gram: look up this many of the last tokens, then fewer, down to one.",
        low=1,
        high=16,
    )
    copy: int = setting(10, "Most tokens copied before each verification.", low=1, high=32, role="copies")
    which: str = setting(
        "first", "Which of several equally long matches is copied.", choices=("first", "latest")
    )


@method(title="Prompt lookup", source="Saxena 2023, as in ParallelSpec", config=Config, uses=("target",))
async def decode(run: Run, cfg: Config) -> None:
    await decode_copies(run, Copier(match=1, longest=cfg.ngram, copy=cfg.copy, latest=cfg.which == "latest"))
