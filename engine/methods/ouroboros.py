"""Ouroboros: the drafter decodes by lookahead; phrases of its pool lengthen drafts for free.

Source: Zhao et al. 2024 (arXiv:2402.13720), section 3; a baseline of PEARL.

Lossless, at any temperature. The drafter decodes greedily with a look-ahead window and a pool of
phrases. Phrases that begin with the draft's last token are appended to it as branches; one target
forward verifies draft and branches. The pool learns from verification: the target's own tokens at
the rejected positions, the parts of a rejected draft that the target continues alike, and its
tokens along the branches are new phrases. Phrases of a reference text may start the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from specscope.engine.drafting.ngrams import Lookahead
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods.common import check_window, window_rows
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import NO_TREE, Draft, Gram, Verdict


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of Ouroboros."""

    gamma: int = setting(
        6, "Fewest tokens of a draft; the drafter's last forward may add more.", low=1, high=32, role="length"
    )
    phrases: int = setting(3, "K: phrases appended to a draft, each as a branch.", low=0, high=16)
    level: int = setting(
        5, "Length of the drafter's n-grams; a phrase is an n-gram without its first token.", low=2, high=8
    )
    window: int = setting(7, "Columns of the drafter's look-ahead window.", low=1, high=64, role="shape")
    guesses: int = setting(
        7, "N-grams kept for each first token, and tried in one forward of the drafter.", low=1, high=64
    )
    reference: str = setting(
        "",
        "Reference text whose n-grams start the pool, the paper's warm start; empty for none.",
        high=100_000,
    )


def plan(cfg: Config, situation: Situation) -> Config:
    check_window(cfg.level, cfg.window, situation.context)
    return cfg


@method(
    title="Ouroboros",
    source="Zhao et al. 2024, section 3",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(
        Separate(turns=True),
        slack=window_rows(cfg.level, cfg.window) + (cfg.level - 1) * max(cfg.guesses, cfg.phrases),
        limited=False,
    ),
)
async def decode(run: Run, cfg: Config) -> None:
    lookahead = Lookahead("drafter", run.x.tokens, cfg.level, cfg.window, cfg.guesses)
    if cfg.reference:
        lookahead.learn(_ngrams(run.document(cfg.reference), cfg.level))
    while not run.done:
        chain = await _draft(run, cfg, lookahead)
        draft = lookahead.guesses(chain, chain.ids[-1], cfg.phrases, run.remaining)
        verdict = await run.target.verify(run.x, draft, window=NO_TREE)
        lookahead.learn(_ngrams(_target_tokens(verdict, len(chain)), cfg.level))
        lookahead.learn(_confirmed_grams(verdict, chain.ids, cfg.level))
        lookahead.rewrite(draft.grams, _rewritten_grams(verdict, draft, len(chain)))
        run.commit(verdict, pool=lookahead)


async def _draft(run: Run, cfg: Config, lookahead: Lookahead) -> Draft:
    """Draft gamma tokens or more by greedy lookahead decoding, at most a full output."""
    chain = Draft.empty()
    while len(chain) < min(cfg.gamma, run.remaining):
        x, remaining = run.x + chain, run.remaining - len(chain)
        last = int(x.tokens[-1])
        guesses = lookahead.guesses(Draft.empty(), last, cfg.guesses, remaining - 1)
        accepted, best = await run.drafter.decode(x, guesses, lookahead.window.tree(last, remaining))
        lookahead.move(best, guesses)
        chain += accepted
    return chain


def _ngrams(tokens: Gram, level: int) -> list[Gram]:
    return [tokens[i : i + level] for i in range(len(tokens) - level + 1)]


def _target_tokens(verdict: Verdict, chain: int) -> Gram:
    """Return the correction of the first rejected token, then the target's argmax after it.

    Args:
        verdict: The verdict on a draft that begins with a chain.
        chain: Tokens of the chain; the result is empty if all of them were accepted.
    """
    accepted = len(verdict.accepted)
    if accepted >= chain or verdict.own is None:
        return ()
    return verdict.own, *verdict.best[1 + accepted : 1 + chain]


def _confirmed_grams(verdict: Verdict, chain: Gram, level: int) -> list[Gram]:
    """Return the n-grams of a rejected draft that the target continues alike, with its next token.

    The first token is any token of the chain from the rejected one on. The tokens after it, but for
    the last, are both the chain's and the target's argmax; the last is the target's only.
    """
    rejected = len(verdict.accepted)
    tokens, own = chain[rejected:], verdict.best[1 + rejected : 1 + len(chain)]
    return [
        (tokens[i], *own[i : i + level - 1])
        for i in range(len(tokens) - level + 2)
        if own[i : i + level - 2] == tokens[i + 1 : i + level - 1]
    ]


def _rewritten_grams(verdict: Verdict, draft: Draft, chain: int) -> list[Gram]:
    """Return each appended n-gram with the target's argmax in place of all tokens but the first."""
    nodes = {(t.parent, t.id): node for node, t in enumerate(draft.tokens)}
    grams = list[Gram]()
    for first, *phrase in draft.grams:
        node, rewritten = chain - 1, [first]
        for token in phrase:
            rewritten.append(verdict.best[1 + node])
            node = nodes[node, token]
        grams.append(tuple(rewritten))
    return grams
