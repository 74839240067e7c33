"""Token trees: the drafter drafts several continuations as a tree, the target verifies all of them in one forward.

Source: SpecInfer (Miao et al. 2024, arXiv:2305.09781), tree-based verification; EasySpec's +tree. Lossless.
Sampled trees are judged by rule 1, sibling after sibling with the exact residual; trees of the most probable paths by
rule 2. The accepted path is one of the tree's, so its KV rows are gathered and the rest is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.tree import Wide
from engine.errors import UsageError
from engine.methods.registry import method, setting
from engine.types import Layout, Separate

if TYPE_CHECKING:
    from engine.run.run import Run

MOST_NODES = 64
"""Nodes of a tree: the target's forward has one row more."""


def check_nodes(width: int, levels: int, name: str) -> None:
    """Raise UsageError where so many levels of so many nodes are more than `MOST_NODES`; `name` is that of the levels' setting."""
    if width * levels > MOST_NODES:
        raise UsageError(
            f"width {width} times {name} {levels} is {width * levels} nodes; it must be at most "
            f"{MOST_NODES}: at this width {name} is at most {MOST_NODES // width}"
        )


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of token trees."""

    width: int = setting(4, "Nodes per level at most; width times depth is at most 64.", low=1, high=16)
    depth: int = setting(5, "Levels: tokens of the longest path.", low=1, high=32)
    drafts: str = setting(
        "sampled",
        "How the drafter picks tokens when the temperature is above 0: sampled without replacement, or the most probable paths.",
        choices=("sampled", "greedy"),
    )

    def __post_init__(self) -> None:
        check_nodes(self.width, self.depth, "depth")


@method(
    title="Token tree",
    source="SpecInfer (2024), as in EasySpec",
    config=Config,
    layout=lambda _: Layout(Separate(turns=True)),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft a tree, verify it, commit, until the run is done."""
    while not run.done:
        shape = Wide(cfg.width, cfg.depth)
        draft = await run.drafter.grow(run.x, shape, sampled=cfg.drafts == "sampled")
        run.commit(await run.target.verify(run.x, draft))
