"""ParallelSpec with EAGLE: one forward over the last token and K mask tokens drafts K + 1 levels of EAGLE's tree.

Source: ParallelSpec (Xiao et al. 2024), section 4.2, algorithm 1, and 4.3; its tree as in appendix A.3. Lossless.
EAGLE's layer reads the target's states and the tokens, then K masks with learned vectors in place of both. Each row says
what comes so many tokens later, whatever comes between, so the children of all nodes of a level come from one q. Drawn
without replacement they are judged by rule 1; the most probable ones (the paper's appendix A.3) by rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.drafters.static import tree, within
from engine.methods.registry import Situation, method, setting
from engine.types import Layout, Separate, check_range

if TYPE_CHECKING:
    from engine.run.run import Run

HEAD = "parallelspec_eagle"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of ParallelSpec with EAGLE."""

    tree: str = setting(
        "eagle", "Static tree: eagle, medusa, or the path of a file that ends in .toml.", high=400
    )
    masks: int = setting(
        0,
        "K, mask tokens: the tree is cut to K + 1 levels; 0 is as many as the tree needs.",
        low=1,
        high=16,
        auto="the tree's",
    )
    drafts: str = setting(
        "sampled",
        "How children are picked when the temperature is above 0: sampled without replacement, or the most probable ones.",
        choices=("sampled", "greedy"),
    )


def plan(cfg: Config, there: Situation) -> Config:
    """Hold the tree against the head.

    Raises:
        UsageError: There is no head, it knows fewer masks than asked for or than the tree needs, or the tree is wrong.
    """
    levels = there.head(HEAD).levels
    check_range("masks", cfg.masks, 0, levels - 1)
    shape = within(cfg.tree, levels, cfg.masks and cfg.masks + 1, "the head")
    return replace(cfg, masks=shape.depth - 1)


@method(
    title="ParallelSpec EAGLE",
    source="ParallelSpec (2024), algorithm 1",
    config=Config,
    plan=plan,
    layout=lambda _: Layout(Separate(drafters=0), head=HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft a tree in one forward, verify it, commit, until the run is done."""
    shape = tree(cfg.tree).cut(cfg.masks + 1)
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=cfg.drafts == "sampled")
        run.commit(await run.target.verify(run.x, draft))
