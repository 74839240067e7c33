"""EAGLE-2: EAGLE's layer with a dynamic tree, which grows where the layer is confident.

Source: EAGLE-2 (Li et al. 2024, arXiv:2406.16858), as in EasySpec; the same heads as EAGLE.

Lossless. Each expanded node of a level gets its `top` most probable children; of all these
children, the `top` with the largest path probability are expanded next. After `depth` levels the
`total` nodes with the largest path probability are verified. The tree is a function of the prefix:
rule 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from specscope.engine.drafting.planner import best_dynamic
from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.drafting.tree import Dynamic
from specscope.engine.errors import UsageError
from specscope.engine.methods.common import decode_trees, head_layout, planned
from specscope.engine.methods.registry import Situation, method
from specscope.engine.run.run import Run

HEAD = "eagle"
MOST_ROWS = 80
"""Most expanded nodes of a tree: KV rows of the layer in addition to the text's."""
PAPER = {"top": 10, "depth": 6, "total": 59}
PLANNED = {"top": 4, "depth": 5, "total": 24}
"""The tree of runs that measure acceptance, and the largest planned one."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of EAGLE-2."""

    top: int = planned(
        f"Children per expanded node, and expanded nodes per level; 0 is {PLANNED['top']} in a planned "
        f"tree and {PAPER['top']} where nothing is planned.",
        high=16,
        paper=PAPER["top"],
    )
    depth: int = planned(
        "Levels: forwards of the layer per round; 0 plans them from measured cost, and is "
        f"{PAPER['depth']} where nothing is planned.",
        high=16,
        paper=PAPER["depth"],
        role="length",
    )
    total: int = planned(
        "Nodes to verify: those with the largest path probability; 0 plans them, and is "
        f"{PAPER['total']} where nothing is planned.",
        high=MOST_NODES,
        paper=PAPER["total"],
        role="shape",
    )

    def __post_init__(self) -> None:
        rows = self.top * (self.depth - 1)
        if rows > MOST_ROWS:
            raise UsageError(
                f"top {self.top} times depth {self.depth} less 1 is {rows} nodes with children; it must "
                f"be at most {MOST_ROWS}: with this top depth is at most {MOST_ROWS // self.top + 1}",
                "depth",
            )


def plan(cfg: Config, situation: Situation) -> Config:
    situation.head_levels(HEAD)
    asked = {name: getattr(cfg, name) for name in PAPER}
    if all(asked.values()):
        return cfg
    probe = {name: value or PLANNED[name] for name, value in asked.items()}
    best = partial(best_dynamic, top=probe["top"], levels=cfg.depth, nodes=cfg.total)
    chosen = situation.planned(probe, best)
    if chosen is None:
        return replace(cfg, **{name: value or PAPER[name] for name, value in asked.items()})
    return replace(cfg, top=probe["top"], depth=chosen.levels, total=chosen.nodes)


@method(
    title="EAGLE-2",
    source="EAGLE-2 (2024), as in EasySpec",
    config=Config,
    plan=plan,
    layout=lambda _: head_layout(HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    await decode_trees(run, Dynamic(cfg.top, cfg.depth, cfg.total), sampled=False)
