"""Suffix decoding: draft what followed the longest likely match, in this text and in finished ones.

Source: SuffixDecoding (Oliaro et al. 2025, arXiv:2411.04975), section 3.

Lossless. Two suffix trees count what followed the last m tokens, for each m: that of the sequence's
prompt and output, and that of finished texts. The draft with the largest expected number of
accepted tokens is verified; no drafter runs. A draft is a function of the prefix and of texts that
were finished before: rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from specscope.engine.methods.common import Suffixes, SuffixSettings
from specscope.engine.methods.registry import method
from specscope.engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config(SuffixSettings):
    """Settings of suffix decoding."""


@method(title="Suffix decoding", source="SuffixDecoding (NeurIPS 2025)", config=Config, uses=("target",))
async def decode(run: Run, cfg: Config) -> None:
    suffixes = Suffixes(run, cfg)
    while not run.done:
        draft = suffixes.draft()
        run.commit(await run.target.verify(run.x, draft))
    suffixes.finish()
