"""EAGLE: a layer beside the target drafts hidden states, one level of a static tree after the other.

Source: EAGLE (Li et al. 2024, arXiv:2401.15077), as in ParallelSpec's baselines; its static tree of 25 nodes. Lossless.
From the target's state before a token, and the token, the layer predicts the state after it; the target's own head turns
that into q. Deeper nodes read predicted states; accepted tokens are read again with the exact ones. Children are drawn
from q without replacement and judged by rule 1, or taken by probability and judged by rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.static import tree
from engine.methods.registry import Situation, method, setting
from engine.types import Layout, Separate

if TYPE_CHECKING:
    from engine.run.run import Run

HEAD = "eagle"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EAGLE."""

    tree: str = setting(
        "eagle", "Static tree: eagle, medusa, or the path of a file that ends in .toml.", high=400
    )
    drafts: str = setting(
        "sampled",
        "How children are picked when the temperature is above 0: sampled without replacement, or the most probable ones.",
        choices=("sampled", "greedy"),
    )


def plan(cfg: Config, there: Situation) -> Config:
    """Check head and tree; any depth will do.

    Raises:
        UsageError: There is no head, or the tree is wrong.
    """
    there.head(HEAD)
    tree(cfg.tree)
    return cfg


@method(
    title="EAGLE",
    source="EAGLE (2024), as in ParallelSpec",
    config=Config,
    plan=plan,
    layout=lambda _: Layout(Separate(drafters=0), head=HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft a tree of states and tokens, verify it, commit, until the run is done."""
    shape = tree(cfg.tree)
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=cfg.drafts == "sampled")
        run.commit(await run.target.verify(run.x, draft))
