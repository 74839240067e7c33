"""DSI: drafters never wait; a pool of target servers verifies their drafts in parallel.

Source: Distributed Speculative Inference (ICLR 2025), algorithm 1 with lookahead (section 3.1).

Lossless. This file has the settings and section 3.1: how many servers, and which lookahead.
`engine/run/turn.py` has algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from engine.errors import UsageError
from engine.layout import Layout, Separate
from engine.methods.registry import Situation, method, setting
from engine.run.run import Run
from engine.run.turn import Turn
from engine.types import MOST_DRAFTERS

MOST_LOOKAHEAD = 64


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of DSI."""

    lookahead: int = setting(
        0,
        "Tokens drafted for each verification; 0 is the smallest number for which the servers suffice.",
        low=1,
        high=MOST_LOOKAHEAD,
        auto="planned",
    )
    sp: int = setting(
        0,
        "Speculation parallelism: target servers; 0 uses as many as the lookahead needs, if the cluster has them.",
        low=1,
        high=64,
        auto="planned",
    )
    drafters: int = setting(
        1,
        "Drafters that race: the first ones of the pair, each on its own device.",
        low=1,
        high=MOST_DRAFTERS,
    )
    acceptance: str = setting(
        "match",
        "match: accept a draft if the target draws the same token (lines 8 and 9). rejection: sample drafts, use p/q.",
        choices=("match", "rejection"),
    )
    drafts: str = setting(
        "greedy",
        "How drafters pick tokens for match when the temperature is above 0; for rejection they sample.",
        choices=("greedy", "sampled"),
    )


# The plan: how many servers for which lookahead.


def servers(lookahead: int, c: float) -> int:
    """Return the servers that verify a drafter's blocks without a queue: ceil(c / lookahead).

    Section 3.1 has this formula, with <= printed for >=. One more server is needed if a block takes
    longer to draft than to verify, because partial blocks are then verified in between.
    """
    return ceil(c / lookahead - 1e-9) + (lookahead > c)


def plan(cfg: Config, situation: Situation) -> Config:
    """Choose the smallest feasible lookahead, and no more servers than it needs for each drafter.

    Raises:
        UsageError: The cluster lacks drafters, devices or servers, the drafters have no common
            rule, or the lookahead asked for needs more servers than there are.
    """
    if cfg.drafters > 1:
        _check_drafters(cfg, situation)
    free = max(1, situation.servers[cfg.drafters])
    if cfg.sp > free:
        drafters = "a drafter" if cfg.drafters == 1 else f"{cfg.drafters} drafters"
        raise UsageError(
            f"sp is {cfg.sp}; beside {drafters} there is room for 1 to {free} target server(s): ask for fewer, or for 0"
        )
    c = situation.c()
    lookahead = _planned_lookahead(cfg.lookahead, cfg.sp or free, free, c)
    needed = cfg.drafters * servers(lookahead, c)
    return replace(cfg, lookahead=lookahead, sp=cfg.sp or min(free, needed))


def _planned_lookahead(lookahead: int, sp: int, free: int, c: float) -> int:
    """Return the lookahead asked for, or the smallest that `sp` servers verify without a queue.

    If no lookahead avoids a queue, 0 becomes the smallest one that keeps up with the drafter.

    Raises:
        UsageError: The lookahead asked for does not keep up with the drafter.
    """
    least = max(1, ceil(c / sp - 1e-9))
    if not lookahead:
        return next((k for k in range(1, MOST_LOOKAHEAD + 1) if servers(k, c) <= sp), least)
    if lookahead < least:
        needed = servers(lookahead, c)
        raise UsageError(
            f"lookahead is {lookahead}; with {sp} target server(s) and a drafter {c:.1f} times as fast as the "
            f"target it must be at least {least}" + (f" (or sp at least {needed})" if needed <= free else "")
        )
    return lookahead


def _check_drafters(cfg: Config, situation: Situation) -> None:
    """Raise UsageError unless several drafters can race: by rule 2, and with a device for each."""
    if cfg.acceptance != "match":
        raise UsageError(
            f"acceptance is {cfg.acceptance}; with {cfg.drafters} drafters it must be match: they have no common q"
        )
    most = max((n for n in range(1, situation.drafters + 1) if situation.servers[n] >= 1), default=1)
    if cfg.drafters > most:
        raise UsageError(
            f"drafters is {cfg.drafters}; it must be at most {most}: the pair has {situation.drafters}, each needs a "
            "device of its own beside a target server's; name more with --drafter, or use a virtual profile"
        )


# The algorithm.


@method(
    title="DSI",
    source="DSI (ICLR 2025), algorithm 1",
    config=Config,
    plan=plan,
    layout=lambda cfg: Layout(Separate(max(1, cfg.sp), cfg.drafters)),
)
async def decode(run: Run, cfg: Config) -> None:
    pool = list(run.targets)
    sampled = cfg.acceptance == "rejection" or cfg.drafts == "sampled"
    while not run.done:
        await Turn(run, pool, cfg.lookahead, match=cfg.acceptance == "match", sampled=sampled).play()
