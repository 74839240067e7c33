"""Ouroboros: the drafter drafts by lookahead decoding, and phrases of its pool lengthen each draft for free.

Source: Zhao et al. 2024 (arXiv:2402.13720), section 3; a baseline of PEARL. Lossless, at any temperature.
The drafter decodes greedily with a look-ahead window and a pool of phrases. Phrases that begin with the draft's last token are
appended as branches, and the target verifies draft and branches in one forward. What it says about tokens that it
rejected, and about the branches, are phrases too: the pool learns from verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.drafters.ngrams import Lookahead
from engine.methods.lookahead import check_window
from engine.methods.registry import Situation, method, setting
from engine.types import NO_TREE, Draft, Gram, Layout, Verdict

if TYPE_CHECKING:
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of Ouroboros."""

    gamma: int = setting(
        6, "Draft length at least: the drafter's last forward may bring more.", low=1, high=32
    )
    phrases: int = setting(3, "K: phrases appended to a draft, each a branch.", low=0, high=16)
    level: int = setting(
        5, "Length of the drafter's n-grams; a phrase is what follows the first token.", low=2, high=8
    )
    window: int = setting(7, "Columns of the drafter's look-ahead window.", low=1, high=64)
    guesses: int = setting(
        7, "N-grams kept for each first token, and tried in one forward of the drafter.", low=1, high=64
    )


def plan(cfg: Config, there: Situation) -> Config:
    """Refuse a window that is larger than the context."""
    check_window(cfg.level, cfg.window, there.context)
    return cfg


@method(
    title="Ouroboros",
    source="Zhao et al. 2024, section 3",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(
        turns=True, slack=(cfg.level - 1) * (cfg.window + max(cfg.guesses, cfg.phrases))
    ),
)
async def decode(run: Run, cfg: Config) -> None:
    """Draft by lookahead, append phrases, verify, learn, commit, until the run is done."""
    ahead = Lookahead("drafter", run.x.tokens, cfg.level, cfg.window, cfg.guesses)
    while not run.done:
        chain = await _draft(run, cfg, ahead)
        draft = ahead.guesses(chain, chain.ids[-1], cfg.phrases, run.room)
        verdict = await run.target.verify(run.x, draft, window=NO_TREE)
        ahead.learn(windows(relabelled(verdict, len(chain)), cfg.level))
        ahead.rewrite(draft.grams, rewritten(verdict, draft, len(chain)))
        run.commit(verdict, pool=ahead)


async def _draft(run: Run, cfg: Config, ahead: Lookahead) -> Draft:
    """Let the drafter decode greedily, by lookahead decoding, until it has gamma tokens or the output is full."""
    chain = Draft.empty()
    while len(chain) < min(cfg.gamma, run.room):
        x, room = run.x + chain, run.room - len(chain)
        last = int(x.tokens[-1])
        guesses = ahead.guesses(Draft.empty(), last, cfg.guesses, room - 1)
        more, best = await run.drafter.decode(x, guesses, ahead.window.tree(last, room))
        ahead.move(best, guesses)
        chain += more
    return chain


def windows(said: Gram, level: int) -> list[Gram]:
    """Return all n-grams of full length in a row of tokens."""
    return [said[i : i + level] for i in range(len(said) - level + 1)]


def relabelled(verdict: Verdict, chain: int) -> Gram:
    """Return the target's own token where it left the chain, and its words for the rest of the chain, so rejected."""
    accepted = len(verdict.accepted)
    if accepted >= chain or verdict.own is None:
        return ()
    return verdict.own, *verdict.best[1 + accepted : 1 + chain]


def rewritten(verdict: Verdict, draft: Draft, chain: int) -> list[Gram]:
    """Return each phrase that was appended, its first token kept, in the target's words along its branch."""
    nodes = {(t.parent, t.id): node for node, t in enumerate(draft.tokens)}
    grams = list[Gram]()
    for first, *tail in draft.grams:
        at, said = chain - 1, [first]
        for token in tail:
            said.append(verdict.best[1 + at])
            at = nodes[at, token]
        grams.append(tuple(said))
    return grams
