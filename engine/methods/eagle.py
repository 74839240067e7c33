"""EAGLE: one layer on the target's device drafts hidden states, level by level along a static tree.

Source: EAGLE (Li et al. 2024, arXiv:2401.15077), as in ParallelSpec's baselines; its tree of 25
nodes.

Lossless. From the target's state before a token and the token itself, the layer predicts the next
state; the target's output layer turns it into q. Deeper nodes read predicted states; accepted
tokens are read again with the target's exact states. Children are sampled from q without
replacement (rule 1), or are the most probable ones (rule 2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specscope.engine.drafting.static import tree
from specscope.engine.methods.common import decode_trees, head_layout, planned_tree, static_tree, tree_drafts
from specscope.engine.methods.registry import Situation, method
from specscope.engine.run.run import Run

HEAD = "eagle"
TREE = "eagle"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EAGLE."""

    tree: str = static_tree(TREE)
    drafts: str = tree_drafts()


def plan(cfg: Config, situation: Situation) -> Config:
    """Plan the tree (see `planned_tree`), and check the head; EAGLE drafts trees of any depth."""
    cfg = replace(cfg, tree=planned_tree(cfg.tree, TREE, situation.head_levels(HEAD), situation))
    tree(cfg.tree)
    return cfg


@method(
    title="EAGLE",
    source="EAGLE (2024), as in ParallelSpec",
    config=Config,
    plan=plan,
    layout=lambda _: head_layout(HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    await decode_trees(run, tree(cfg.tree), sampled=cfg.drafts == "sampled")
