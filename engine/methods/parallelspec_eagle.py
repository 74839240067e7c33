"""ParallelSpec with EAGLE: one forward over K mask tokens drafts K + 1 levels of EAGLE's tree.

Source: ParallelSpec (Xiao et al. 2024), sections 4.2 and 4.3, algorithm 1; the tree of appendix
A.3.

Lossless. EAGLE's layer reads the target's states and the tokens, then K masks: learned vectors in
place of both. The last token's row predicts the first level, the row of mask i level i + 1,
whichever tokens lie between; so all nodes of a level have the same q for their children. Children
are sampled without replacement (rule 1), or are the most probable ones (rule 2, the paper's
appendix A.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from specscope.engine.drafting.static import tree
from specscope.engine.methods.common import (
    decode_trees,
    head_layout,
    plan_masks,
    static_tree,
    tree_drafts,
    tree_masks,
)
from specscope.engine.methods.registry import method
from specscope.engine.run.run import Run

HEAD = "parallelspec_eagle"
TREE = "eagle"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of ParallelSpec with EAGLE."""

    tree: str = static_tree(TREE)
    masks: int = tree_masks()
    drafts: str = tree_drafts()


@method(
    title="ParallelSpec EAGLE",
    source="ParallelSpec (2024), algorithm 1",
    config=Config,
    plan=partial(plan_masks, head=HEAD, paper=TREE),
    layout=lambda _: head_layout(HEAD, at_once=True),
)
async def decode(run: Run, cfg: Config) -> None:
    await decode_trees(run, tree(cfg.tree).cut(cfg.masks + 1), sampled=cfg.drafts == "sampled")
