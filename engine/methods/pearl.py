"""PEARL: draft and verify at the same time, with a draft length that adapts.

Source: PEARL (ICLR 2025), sections 3.2 and 3.3, algorithm 2. Lossless.
Pre-verify: while the drafter drafts a chunk, the target checks the chunk's first token. Post-verify: while the
target checks a chunk, the drafter goes on as if all of it were accepted. `pending` holds the tokens drafted after
the prefix and not yet verified; empty means pre-verify mode. With `guesses`, pre-verify also checks tokens copied from
the text so far (section 4.3 names such a pool as future work): they are a function of the prefix, so rule 2 decides
those positions, and drafts that say the same as what was emitted live on. In the placement `pipeline` (appendix G) the target's
layers are split over several devices, and the drafter works where the target does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from engine.drafters.copy import Copier
from engine.methods.registry import Situation, method, setting
from engine.types import Colocated, Draft, Layout, Pipelined, Prefix

if TYPE_CHECKING:
    from engine.run.run import Run


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of PEARL."""

    gamma: int = setting(
        0,
        "Window size: tokens drafted in one go; 0 is round(c), the paper's best choice.",
        low=1,
        high=32,
        auto="round(c)",
    )
    pre_verify: bool = setting(True, "Check the first token of a chunk while the chunk is drafted.")
    post_verify: bool = setting(True, "Go on drafting while a chunk is verified.")
    guesses: int = setting(
        0,
        "Tokens to pre-verify besides, copied from where the last two stood before; 0 is the paper's PEARL.",
        low=0,
        high=16,
    )
    placement: str = setting(
        "separate",
        "Where drafter and target live: on devices of their own, both on one, or the drafter on the ends of a target split by layers.",
        choices=("separate", "co-located", "pipeline"),
    )
    stages: int = setting(
        0,
        "In a pipeline, the devices that the target's layers are split over; 0 is what the target takes anyway, at least 2.",
        low=2,
        high=16,
        auto="planned",
    )


def plan(cfg: Config, there: Situation) -> Config:
    """Take round(c) for a gamma that is left open, and split the target as it is split anyway."""
    if cfg.placement == "pipeline":
        cfg = replace(cfg, stages=there.stages(cfg.stages))
    return cfg if cfg.gamma else replace(cfg, gamma=min(32, max(1, round(there.c))))


def layout(cfg: Config) -> Layout:
    """Return the workers of a placement."""
    if cfg.placement == "pipeline":
        return Layout(Pipelined(max(2, cfg.stages)))
    return Layout(Colocated()) if cfg.placement == "co-located" else Layout()


@method(
    title="PEARL",
    source="PEARL (ICLR 2025), algorithm 2",
    config=Config,
    plan=plan,
    layout=layout,
)
async def decode(run: Run, cfg: Config) -> None:
    """Overlap drafting and verification until the run is done; with both strategies off it is `speculative`."""
    pending, copier = Draft.empty(), Copier(copy=max(1, cfg.guesses))
    while not run.done:
        if not pending and not cfg.pre_verify:
            pending = await draft(run, run.x, cfg.gamma)
            continue
        if pending and not cfg.post_verify:
            run.commit(await run.target.verify(run.x, pending))
            pending = Draft.empty()
            continue
        guess = copier.draft(run.x.tokens, run.room) if cfg.guesses and not pending else Draft.empty()
        scores = run.target.score(run.x, pending or guess)
        ahead = await draft(run, run.x + pending, cfg.gamma)
        if guess:
            verdict = await scores.judge(guess)
            pending = _after(ahead, verdict.emitted)
        else:
            verdict = await scores.judge(pending + ahead[:1], bonus=False)
            pending = ahead[1:] if verdict.all_accepted else Draft.empty()
        run.commit(verdict, kept=pending)


async def draft(run: Run, prefix: Prefix, gamma: int) -> Draft:
    """Draft gamma tokens; in a pipeline the first half on the last device, the rest on the first (appendix G)."""
    if len(run.drafters) == 1:
        return await run.drafter.propose(prefix, gamma)
    last, first = run.drafters
    head = await last.propose(prefix, ceil(gamma / 2))
    rest = min(gamma // 2, run.room + len(run.x) - len(prefix) - len(head))
    if rest < 1:
        return head
    await last.move(prefix + head, to=first)
    return head + await first.propose(prefix + head, rest)


def _after(ahead: Draft, emitted: tuple[int, ...]) -> Draft:
    """Return what is left of a draft that began as the text went on; nothing when it did not."""
    n = len(emitted)
    return ahead[n:] if ahead.ids[:n] == emitted else Draft.empty()
