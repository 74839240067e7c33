"""ParallelSpec with Medusa: one layer with K mask tokens drafts what K + 1 Medusa heads draft.

Source: ParallelSpec (Xiao et al. 2024), sections 4.1 and 4.3; Medusa's tree.

Lossless. The layer reads the last tokens, each with the target's state of the token before it (the
paper leaves open whether the layer reads states), then K masks. The last token's row predicts the
first level, the row of mask i level i + 1, whichever tokens lie between. The tree holds the most
probable combinations, so it is a function of the prefix: rule 2.

With `first` = mask the row before the last token's predicts the last token, which is known, and
mask i predicts level i: K masks in the place of K Medusa heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from specscope.engine.drafting.static import tree
from specscope.engine.methods.common import decode_trees, head_layout, plan_masks, static_tree, tree_masks
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run

HEAD = "parallelspec_medusa"
TREE = "medusa"
MASKED_TAIL = {"token": 0, "mask": 1}
"""Last tokens that the layer does not read, by the setting `first`."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of ParallelSpec with Medusa."""

    tree: str = static_tree(TREE)
    masks: int = tree_masks()
    first: str = setting(
        "token",
        "The row that drafts level 1: the last token's, so that K masks draft K + 1 levels; or the first mask's, in the "
        "place of the last token, so that K masks draft K levels as K Medusa heads do.",
        choices=("token", "mask"),
    )


def plan(cfg: Config, situation: Situation) -> Config:
    return plan_masks(cfg, situation, HEAD, TREE, MASKED_TAIL[cfg.first], first=cfg.first)


@method(
    title="ParallelSpec Medusa",
    source="ParallelSpec (2024), section 4.3",
    config=Config,
    plan=plan,
    layout=lambda _: head_layout(HEAD, at_once=True),
)
async def decode(run: Run, cfg: Config) -> None:
    masked_tail = MASKED_TAIL[cfg.first]
    await decode_trees(
        run, tree(cfg.tree).cut(cfg.masks + 1 - masked_tail), sampled=False, masked_tail=masked_tail
    )
