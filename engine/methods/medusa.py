"""Medusa: heads beside the target's own each guess one of the next tokens from one hidden state, in one call.

Source: Medusa (Cai et al. 2024, arXiv:2401.10774), as in ParallelSpec's baselines; its static tree of 63 nodes. Lossless
unless asked otherwise.
Head i reads the state that the target's last forward left of the token before the last one, and says what comes i + 1
tokens after the last one, whatever comes between. The most probable combinations are a tree, which is a function of
the prefix: rule 2. With typical acceptance (section 2.3.1, LOSSY) tokens stand that the target finds probable enough.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.drafters.static import tree, within
from engine.methods.registry import Situation, method, setting
from engine.types import Layout, Separate, Typical, check_range

if TYPE_CHECKING:
    from engine.run.run import Run

HEAD = "medusa"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of Medusa."""

    tree: str = setting(
        "medusa", "Static tree: medusa, eagle, or the path of a file that ends in .toml.", high=400
    )
    heads: int = setting(
        0,
        "Heads that draft: the tree is cut to so many levels; 0 is as many as the tree has levels.",
        low=1,
        high=32,
        auto="the tree's",
    )
    acceptance: str = setting(
        "exact",
        "exact keeps the target's distribution. typical is lossy above temperature 0: what p finds probable enough stands.",
        choices=("exact", "typical"),
        lossy=("typical",),
    )
    epsilon: float = setting(
        0.09, "Read by typical: a drafted token stands if p > min(epsilon, delta exp(-H(p))).", low=0, high=1
    )
    delta: float = setting(0.3, "Read by typical, see epsilon; H is the entropy of p.", low=0, high=1)


def plan(cfg: Config, there: Situation) -> Config:
    """Hold the tree against the head.

    Raises:
        UsageError: There is no head, it has fewer heads than asked for or than the tree has levels, or the tree is wrong.
    """
    levels = there.head(HEAD).levels
    check_range("heads", cfg.heads, 0, levels)
    return replace(cfg, heads=within(cfg.tree, levels, cfg.heads, "the head").depth)


@method(
    title="Medusa",
    source="Medusa (2024), as in ParallelSpec",
    config=Config,
    plan=plan,
    layout=lambda _: Layout(Separate(drafters=0), head=HEAD),
)
async def decode(run: Run, cfg: Config) -> None:
    """Let the heads draft a tree, verify it, commit, until the run is done."""
    shape = tree(cfg.tree).cut(cfg.heads or 32)
    typical = Typical(cfg.epsilon, cfg.delta) if cfg.acceptance == "typical" else None
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=False)
        run.commit(await run.target.verify(run.x, draft, typical=typical))
