"""Lookahead decoding: the target's own forward looks ahead, and n-grams found that way are verified in the same forward.

Source: Fu et al. 2024 (arXiv:2402.02057), algorithm 2; a baseline of PEARL and ParallelSpec. Lossless.
No drafter. One target forward holds the last token, the n-grams of the pool that begin with it (judged), and the
look-ahead window (scored only), as one tree of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.ngrams import Lookahead
from engine.errors import UsageError
from engine.methods.registry import Situation, method, setting
from engine.types import Draft, Layout

if TYPE_CHECKING:
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of lookahead decoding."""

    level: int = setting(5, "N: length of the n-grams; the window has one level less.", low=2, high=8)
    window: int = setting(7, "W: columns of the window, one for each of the next positions.", low=1, high=64)
    guesses: int = setting(
        7, "G: n-grams kept for each first token, and verified in one forward.", low=1, high=64
    )


def check_window(level: int, window: int, context: int) -> None:
    """Raise UsageError unless a window's deepest row can stand in the context."""
    if level + window - 2 >= context:
        raise UsageError(
            f"window is {window}; with level {level} and a context of {context} tokens it must be at least 1 and at most "
            f"{context - level + 1}"
        )


def plan(cfg: Config, there: Situation) -> Config:
    """Refuse a window that is larger than the context."""
    check_window(cfg.level, cfg.window, there.context)
    return cfg


@method(
    title="Lookahead decoding",
    source="Fu et al. 2024, algorithm 2",
    config=Config,
    uses=("target",),
    plan=plan,
    layout=lambda cfg: Layout(drafters=0, slack=(cfg.level - 1) * (cfg.window + cfg.guesses)),
)
async def decode(run: Run, cfg: Config) -> None:
    """Verify n-grams and look ahead in one forward, commit, until the run is done."""
    ahead = Lookahead("target", run.x.tokens, cfg.level, cfg.window, cfg.guesses)
    while not run.done:
        last = int(run.x.tokens[-1])
        draft = ahead.guesses(Draft.empty(), last, cfg.guesses, run.room)
        verdict = await run.target.verify(run.x, draft, window=ahead.window.tree(last, run.room))
        ahead.move(verdict.best, draft)
        run.commit(verdict, pool=ahead)
