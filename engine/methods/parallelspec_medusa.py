"""ParallelSpec with Medusa: a layer with mask tokens takes the place of Medusa's heads; one forward drafts K + 1 levels.

Source: ParallelSpec (Xiao et al. 2024), section 4.1 and 4.3; Medusa's tree. Lossless.
The layer reads the last tokens, each with the target's state of the token before (the paper leaves open whether it sees any),
then K masks. Each row says what comes so many tokens later, whatever comes between. The most probable combinations are
a tree, which is a function of the prefix: rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.drafters.static import tree, within
from engine.methods.registry import Situation, method, setting
from engine.types import Layout, Separate, check_range

if TYPE_CHECKING:
    from engine.run.run import Run

HEAD = "parallelspec_medusa"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of ParallelSpec with Medusa."""

    tree: str = setting(
        "medusa", "Static tree: medusa, eagle, or the path of a file that ends in .toml.", high=400
    )
    masks: int = setting(
        0,
        "K, mask tokens: the tree is cut to K + 1 levels; 0 is as many as the tree needs.",
        low=1,
        high=16,
        auto="the tree's",
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
    title="ParallelSpec Medusa",
    source="ParallelSpec (2024), section 4.3",
    config=Config,
    plan=plan,
    layout=lambda _: Layout(Separate(drafters=0), head=HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft a tree in one forward, verify it, commit, until the run is done."""
    shape = tree(cfg.tree).cut(cfg.masks + 1)
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=False)
        run.commit(await run.target.verify(run.x, draft))
