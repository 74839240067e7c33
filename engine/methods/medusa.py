"""Medusa: drafting heads each guess one of the next tokens from the same hidden state, in one call.

Source: Medusa (Cai et al. 2024, arXiv:2401.10774), as in ParallelSpec's baselines; its tree of 63
nodes.

Lossless with exact acceptance. Head i reads the hidden state that the target's last forward
computed for the token before the last one. It predicts the token i + 1 places after the last one,
whichever tokens lie between. The tree holds the most probable combinations, so it is a function of
the prefix: rule 2. Typical acceptance (section 2.3.1, LOSSY) accepts every token that the target
finds probable enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from specscope.engine.drafting.static import tree
from specscope.engine.methods.common import head_layout, plan_heads, static_tree, tree_heads
from specscope.engine.methods.registry import method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import Typical

HEAD = "medusa"
TREE = "medusa"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of Medusa."""

    tree: str = static_tree(TREE)
    heads: int = tree_heads()
    acceptance: str = setting(
        "exact",
        "exact keeps the target's distribution; typical is lossy above temperature 0: it accepts what p finds probable enough.",
        choices=("exact", "typical"),
        lossy=("typical",),
    )
    epsilon: float = setting(
        0.09, "For typical: accept a drafted token if p > min(epsilon, delta exp(-H(p))).", low=0, high=1
    )
    delta: float = setting(0.3, "For typical, see epsilon; H is the entropy of p.", low=0, high=1)


@method(
    title="Medusa",
    source="Medusa (2024), as in ParallelSpec",
    config=Config,
    plan=partial(plan_heads, head=HEAD, paper=TREE),
    layout=lambda _: head_layout(HEAD, at_once=True),
)
async def decode(run: Run, cfg: Config) -> None:
    shape = tree(cfg.tree).cut(cfg.heads)
    typical = Typical(cfg.epsilon, cfg.delta) if cfg.acceptance == "typical" else None
    while not run.done:
        draft = await run.drafter.grow(run.x, shape, sampled=False)
        run.commit(await run.target.verify(run.x, draft, typical=typical))
