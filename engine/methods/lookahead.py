"""Lookahead decoding: each target forward verifies n-grams of a pool and computes new ones for it.

Source: Fu et al. 2024 (arXiv:2402.02057), algorithm 2; a baseline of PEARL and ParallelSpec.

Lossless. No drafter runs. One target forward holds, as a tree of rows, the last token, the pool's
n-grams that begin with it (judged) and the look-ahead window (scored only).
"""

from __future__ import annotations

from dataclasses import dataclass

from specscope.engine.drafting.ngrams import Lookahead
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods.common import check_window, window_rows
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import Draft


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of lookahead decoding."""

    level: int = setting(5, "N: length of the n-grams; the window has N - 1 levels.", low=2, high=8)
    window: int = setting(
        7, "W: columns of the window, one for each of the next positions.", low=1, high=64, role="shape"
    )
    guesses: int = setting(
        7, "G: n-grams kept for each first token, and verified in one forward.", low=1, high=64
    )


def plan(cfg: Config, situation: Situation) -> Config:
    check_window(cfg.level, cfg.window, situation.context)
    return cfg


@method(
    title="Lookahead decoding",
    source="Fu et al. 2024, algorithm 2",
    config=Config,
    uses=("target",),
    plan=plan,
    layout=lambda cfg: Layout(
        Separate(drafters=0), slack=window_rows(cfg.level, cfg.window) + (cfg.level - 1) * cfg.guesses
    ),
)
async def decode(run: Run, cfg: Config) -> None:
    lookahead = Lookahead("target", run.x.tokens, cfg.level, cfg.window, cfg.guesses)
    while not run.done:
        last = int(run.x.tokens[-1])
        draft = lookahead.guesses(Draft.empty(), last, cfg.guesses, run.remaining)
        verdict = await run.target.verify(run.x, draft, window=lookahead.window.tree(last, run.remaining))
        lookahead.move(verdict.best, draft)
        run.commit(verdict, pool=lookahead)
