"""Hydra: drafting heads that also read the tokens drafted before, so that levels fit together.

Source: Hydra (Ankner et al. 2024, arXiv:2402.05109), as in ParallelSpec's baselines; Medusa's tree.

Lossless. Head i reads the hidden state of the target's last forward, and the embeddings of the last
token and of the i tokens drafted after it: one call per level, over all nodes that have children.
The tree holds the most probable tokens, so it is a function of the prefix: rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from specscope.engine.drafting.static import tree
from specscope.engine.methods.common import decode_trees, head_layout, plan_heads, static_tree, tree_heads
from specscope.engine.methods.registry import method
from specscope.engine.run.run import Run

HEAD = "hydra"
TREE = "medusa"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of Hydra."""

    tree: str = static_tree(TREE)
    heads: int = tree_heads()


@method(
    title="Hydra",
    source="Hydra (2024), as in ParallelSpec",
    config=Config,
    plan=partial(plan_heads, head=HEAD, paper=TREE),
    layout=lambda _: head_layout(HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    await decode_trees(run, tree(cfg.tree).cut(cfg.heads), sampled=False)
