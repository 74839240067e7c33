"""EAGLE-2: EAGLE's layer with a tree that grows where the layer is sure.

Source: EAGLE-2 (Li et al. 2024, arXiv:2406.16858), as in EasySpec; the same heads as EAGLE. Lossless.
Every node of a level gets the `top` most probable children; of these the `top` with the largest probability of their path
get children in turn. At last all nodes are ranked by that probability, and the best `total` are the tree: a function of
the prefix, rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.static import MOST_NODES
from engine.drafters.tree import Dynamic
from engine.errors import UsageError
from engine.methods.registry import Situation, method, setting
from engine.types import Layout, Separate

if TYPE_CHECKING:
    from engine.run.run import Run

HEAD = "eagle"
MOST_ROWS = 80
"""Rows of the layer that a tree may take beside those of the text."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EAGLE-2."""

    top: int = setting(10, "Children of a node, and nodes of a level that get children.", low=1, high=16)
    depth: int = setting(6, "Levels: forwards of the layer in a round.", low=1, high=16)
    total: int = setting(59, "Nodes that are verified: the most probable of all.", low=1, high=MOST_NODES)

    def __post_init__(self) -> None:
        if self.top * (self.depth - 1) > MOST_ROWS:
            raise UsageError(
                f"top {self.top} times depth {self.depth} less 1 is {self.top * (self.depth - 1)} nodes with children; it must "
                f"be at most {MOST_ROWS}: with this top depth is at most {MOST_ROWS // self.top + 1}"
            )


def plan(cfg: Config, there: Situation) -> Config:
    """Check that there is a head.

    Raises:
        UsageError: There is none, or it does not fit the target.
    """
    there.head(HEAD)
    return cfg


@method(
    title="EAGLE-2",
    source="EAGLE-2 (2024), as in EasySpec",
    config=Config,
    plan=plan,
    layout=lambda _: Layout(Separate(drafters=0), head=HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    """Grow a tree where the layer is sure, verify its best nodes, commit, until the run is done."""
    shape = Dynamic(cfg.top, cfg.depth, cfg.total)
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=False)
        run.commit(await run.target.verify(run.x, draft))
