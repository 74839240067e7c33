"""PEARL: draft and verify at the same time, with a draft length that adapts.

Source: PEARL (ICLR 2025), sections 3.2 and 3.3, algorithm 2.

Lossless. Pre-verify: while the drafter drafts a chunk, the target verifies the chunk's first token.
Post-verify: while the target verifies a chunk, the drafter drafts on as if all of it were accepted.
`pending` holds the tokens that were drafted after x and are not verified yet; if it is empty, the
mode is pre-verify. With `guesses`, pre-verify also verifies tokens copied from the text so far
(section 4.3 names such a pool as future work). They are a function of the prefix, so rule 2 decides
those positions; drafts that begin with the emitted tokens stay pending. In the placement `pipeline`
(appendix G) the target's layers are split over several devices, and the drafter works on whichever
end the target does not use.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil

from specscope.engine.drafting.copy import Copier
from specscope.engine.drafting.planner import best_parallel
from specscope.engine.drafting.schedule import Ask
from specscope.engine.layout import Colocated, Layout, Pipelined, Separate
from specscope.engine.methods.common import (
    chain_confidence,
    chain_off,
    chain_schedule,
    own_confidence,
    planned,
    schedule_of,
)
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import Draft, Prefix

MEASURED = 8
"""Draft length of runs that measure acceptance rates."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of PEARL."""

    gamma: int = planned(
        "Window size: tokens drafted in one go; 0 plans it from measured cost and acceptance, and is "
        "round(c), the paper's best choice, where nothing is planned.",
        high=32,
        role="length",
    )
    pre_verify: bool = setting(
        True,
        "Verify the first token of a chunk while the chunk is drafted; else it waits for its chunk's verification.",
    )
    post_verify: bool = setting(True, "Draft on while a chunk is verified.")
    guesses: int = setting(
        0,
        "Tokens copied from an earlier occurrence of the last two and pre-verified as well; 0 is the paper's PEARL.",
        low=0,
        high=16,
    )
    schedule: str = chain_schedule()
    confidence: float = chain_confidence()
    off_below: float = chain_off()
    placement: str = setting(
        "separate",
        "Devices: one for each model, one for both, or a pipeline of target layers with the drafter on both ends.",
        choices=("separate", "co-located", "pipeline"),
    )
    stages: int = setting(
        0,
        "Devices of the pipeline; 0 uses as many as the target takes anyway, at least 2.",
        low=2,
        high=16,
        auto="planned",
        role="devices",
    )


def plan(cfg: Config, situation: Situation) -> Config:
    """Choose gamma and the cluster's usual number of stages where they are 0."""
    cfg = own_confidence(cfg)
    if cfg.placement == "pipeline":
        cfg = replace(cfg, stages=situation.stages(cfg.stages))
    if cfg.gamma:
        return cfg
    one_by_one = Config(
        MEASURED, pre_verify=False, post_verify=False, placement=cfg.placement, stages=cfg.stages
    )
    chosen = situation.planned(asdict(one_by_one), best_parallel)
    gamma = round(situation.c()) if chosen is None else chosen.levels
    return replace(cfg, gamma=min(32, max(1, gamma)))


def layout(cfg: Config) -> Layout:
    if cfg.placement == "pipeline":
        return Layout(Pipelined(max(2, cfg.stages)))
    return Layout(Colocated() if cfg.placement == "co-located" else Separate(), lockstep=True)


@method(
    title="PEARL",
    source="PEARL (ICLR 2025), algorithm 2",
    config=Config,
    plan=plan,
    layout=layout,
)
async def decode(run: Run, cfg: Config) -> None:
    pending, copier, schedule = Draft.empty(), Copier(copy=max(1, cfg.guesses)), schedule_of(cfg)
    while not run.done:
        if not pending and not cfg.pre_verify:
            pending = await _draft(run, run.x, schedule.next())
        if pending and not cfg.post_verify:
            verdict = await run.target.verify(run.x, pending)
            schedule.learn(verdict)
            run.commit(verdict)
            pending = Draft.empty()
            continue
        guess = copier.draft(run.x.tokens, run.remaining) if cfg.guesses and not pending else Draft.empty()
        scores = run.target.score(run.x, pending or guess)
        chunk = await _draft(run, run.x + pending, schedule.next())
        if guess:
            verdict = await scores.judge(guess, mode="pre-verify")
            pending = _rest(chunk, verdict.emitted)
        else:
            early = chunk[:1] if cfg.pre_verify else Draft.empty()
            draft = pending + early
            verdict = await scores.judge(draft, bonus=not draft)
            schedule.learn(verdict)
            pending = chunk[len(early) :] if verdict.all_accepted else Draft.empty()
        run.commit(verdict, kept=pending)


async def _draft(run: Run, prefix: Prefix, ask: Ask) -> Draft:
    """Draft a chunk; in a pipeline the last device drafts the first half (appendix G)."""
    if len(run.drafters) == 1:
        return await run.drafter.propose(prefix, ask)
    last, first = run.drafters
    half = await last.propose(prefix, ask._replace(tokens=ceil(ask.tokens / 2)))
    room = run.remaining + len(run.x) - len(prefix) - len(half)
    if min(ask.tokens // 2, room) < 1 or ask.ends(half):
        return half
    await last.move(prefix + half, to=first)
    return half + await first.propose(prefix + half, ask._replace(tokens=ask.tokens // 2))


def _rest(draft: Draft, emitted: tuple[int, ...]) -> Draft:
    """Drop the emitted tokens from the front of a draft; an empty draft if it begins otherwise."""
    n = len(emitted)
    return draft[n:] if draft.ids[:n] == emitted else Draft.empty()
