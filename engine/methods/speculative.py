"""Speculative decoding: draft gamma tokens, verify all of them in one target forward.

Source: Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1; Chen et al. 2023 (arXiv:2302.01318).

Lossless. A round emits the n accepted tokens and one token of the target: the correction if n <
gamma, else the bonus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.layout import Layout, Separate
from engine.methods.common import chain_drafts
from engine.methods.registry import method, setting

if TYPE_CHECKING:
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of speculative decoding."""

    gamma: int = setting(5, "Draft length: tokens drafted before each verification.", low=1, high=32)
    drafts: str = chain_drafts()


@method(
    title="Speculative decoding",
    source="Leviathan et al. 2023, algorithm 1",
    config=Config,
    layout=lambda _: Layout(Separate(turns=True)),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft, verify, commit; until the run is done."""
    while not run.done:
        draft = await run.drafter.propose(run.x, cfg.gamma, sampled=cfg.drafts == "sampled")
        run.commit(await run.target.verify(run.x, draft))
