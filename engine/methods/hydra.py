"""Hydra: heads that also read the tokens drafted so far, so that a tree's levels fit together.

Source: Hydra (Ankner et al. 2024, arXiv:2402.05109), as in ParallelSpec's baselines; Medusa's static tree. Lossless.
Head i reads the state that the target's last forward left, and the embeddings of the last token and of the i tokens
drafted after it: one call per level, over all nodes that have children. The most probable tokens make the tree: rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.drafters.static import tree, within
from engine.methods.registry import Situation, method, setting
from engine.types import Layout, Separate, check_range

if TYPE_CHECKING:
    from engine.run.run import Run

HEAD = "hydra"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of Hydra."""

    tree: str = setting(
        "medusa", "Static tree: medusa, eagle, or the path of a file that ends in .toml.", high=400
    )
    heads: int = setting(
        0,
        "Heads that draft: the tree is cut to so many levels; 0 is as many as the tree has levels.",
        low=1,
        high=32,
        auto="the tree's",
    )


def plan(cfg: Config, there: Situation) -> Config:
    """Hold the tree against the head.

    Raises:
        UsageError: There is no head, it has fewer heads than asked for or than the tree has levels, or the tree is wrong.
    """
    levels = there.head(HEAD).levels
    check_range("heads", cfg.heads, 0, levels)
    return replace(cfg, heads=within(cfg.tree, levels, cfg.heads, "the head").depth)


@method(
    title="Hydra",
    source="Hydra (2024), as in ParallelSpec",
    config=Config,
    plan=plan,
    layout=lambda _: Layout(Separate(drafters=0), head=HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    """Let the heads draft a tree level by level, verify it, commit, until the run is done."""
    shape = tree(cfg.tree).cut(cfg.heads or 32)
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=False)
        run.commit(await run.target.verify(run.x, draft))
