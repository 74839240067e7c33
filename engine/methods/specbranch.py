"""SpecBranch: fork where the drafter is unsure, and draft the branches while the target verifies.

Source: SpecBranch (arXiv:2506.01979, ICLR 2026), without its classifier H-RAD.

Lossless. The *branch point* is the first drafted place where the drafter's largest probability is
under a threshold. The place and its number of siblings k are functions of the prefix, so the k
siblings are drawn without replacement from one q, and rule 1 tests them one after the other. Rule 2
does if they are the drafter's k most probable tokens. With a threshold on a drawn token's own q,
siblings drawn anew would favour likely tokens. `trunk` holds the tokens after x and before the
branch point; None if the drafter has to find the branch point first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.drafting.tree import Branches
from specscope.engine.layout import Colocated, Layout, Separate
from specscope.engine.methods.common import check_nodes, tree_drafts
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import Draft

LONGEST = 32


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of SpecBranch."""

    gamma: int = setting(
        0,
        "Most tokens drafted before a branch point while the target waits: in the first round and after "
        "each rejection; 0 is round(c).",
        low=1,
        high=LONGEST,
        auto="round(c)",
        role="length",
    )
    threshold: float = setting(
        0.3,
        "The branch point is where the drafter's largest probability is lower.",
        low=0,
        high=1,
        role="doubt",
    )
    branches: int = setting(
        4,
        "k_max: a branch point of largest probability q gets max(1, floor(k_max (1 - q))) siblings; "
        "1 is a single chain.",
        low=1,
        high=16,
        role="shape",
    )
    length: int = setting(
        0,
        "Most tokens of a branch, its sibling included; branches times length is at most 64. 0 is round(c).",
        low=1,
        high=LONGEST,
        auto="round(c)",
    )
    drafts: str = tree_drafts()
    placement: str = setting(
        "separate", "Devices: one for each model, or one for both.", choices=("separate", "co-located")
    )

    def __post_init__(self) -> None:
        check_nodes(self.branches, self.length, "length", "branches")


def plan(cfg: Config, situation: Situation) -> Config:
    """Replace a gamma and a length of 0 by the draft forwards that fit beside one verification."""
    if cfg.gamma and cfg.length:
        return cfg
    c = min(LONGEST, max(1, round(situation.c())))
    return replace(cfg, gamma=cfg.gamma or c, length=cfg.length or min(c, MOST_NODES // cfg.branches))


def layout(cfg: Config) -> Layout:
    return Layout(Colocated() if cfg.placement == "co-located" else Separate(), lockstep=True)


@method(
    title="SpecBranch",
    source="SpecBranch (ICLR 2026)",
    config=Config,
    plan=plan,
    layout=layout,
)
async def decode(run: Run, cfg: Config) -> None:
    sampled = cfg.drafts == "sampled"
    chain = Branches(0, cfg.gamma, cfg.threshold)
    fork = Branches(cfg.branches, cfg.length, cfg.threshold)
    trunk: Draft | None = None
    while not run.done:
        if trunk is None:
            trunk = await run.drafter.grow(run.x, chain, sampled=sampled)
        scores = run.target.score(run.x, trunk)
        branches = await run.drafter.grow(run.x + trunk, fork, sampled=sampled)
        verdict = await scores.judge(_forked(trunk, branches), bonus=False)
        sibling = verdict.nodes[len(trunk) :]
        trunk = _below(branches, sibling[0] - len(trunk)) if sibling else None
        run.commit(verdict, kept=trunk)


def _forked(trunk: Draft, branches: Draft) -> Draft:
    """Return the trunk with the branches' first tokens, the siblings, as leaves after it."""
    siblings = (replace(t, parent=len(trunk) - 1) for t in branches.tokens if t.parent < 0)
    return Draft((*trunk.tokens, *siblings), trunk.lease + branches.lease)


def _below(branches: Draft, node: int) -> Draft:
    """Return the rest of a branch, a chain: the tokens below one of its nodes."""
    rest = list[int]()
    for i, token in enumerate(branches.tokens):
        if token.parent == node:
            rest.append(i)
            node = i
    return Draft(tuple(branches.tokens[i] for i in rest), branches.lease)[:]
