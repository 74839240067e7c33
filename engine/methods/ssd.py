"""SSD (Saguaro): while the target verifies a draft, draft the next one for every likely verdict.

Source: Speculative Speculative Decoding (ICLR 2026, arXiv:2603.03251), section 4: the speculation
cache and its fan-out (4.1), Saguaro sampling (4.2), the backup (4.3).

Lossless. The outcome of a verification is (j, t): j accepted tokens and the target's own token t.
During it the drafter forwards the same draft, guesses at each place j the F_j most probable t, and
drafts a branch of gamma tokens after each guess. A *hit*: the outcome has a branch, which is the
next draft at once. A *miss*: the drafter drafts now (`neural`), or nothing is drafted (`none`).

Each branch is drawn like a draft of its own prefix: from its q, with the number of each position.
So the branch of a hit is the draft that a miss would make, and the text, also at temperature above
0, is that of speculative decoding with this gamma: it depends on no hit and on no device's speed.
All branches use the same numbers, which is exact because only one of them is ever judged. The
outcome that chooses it depends on numbers of earlier positions and on the target's, never on those
that the branch was drawn with. With `none` a miss makes a shorter draft; the guesses are a function
of the prefix and the draft, so they were known before t was.

When the verdict is known, the drafter stops after its present forward. A branch that is cut short
is drafted to its end. The length of the next draft is chosen before its branches are begun, by the
verdicts that are known then; so hit and miss have the same one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from specscope.engine.drafting.schedule import Ask, Schedule
from specscope.engine.errors import UsageError, shown
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods.common import (
    chain_confidence,
    chain_drafts,
    chain_off,
    chain_schedule,
    own_confidence,
    planned,
    schedule_of,
)
from specscope.engine.methods.registry import Situation, method, setting
from specscope.engine.run.run import Run
from specscope.engine.types import Damping, Draft, check_range

LONGEST = 32
MOST_FORKS = 64
MOST_ROWS = 3968
"""Rows of all branches: their q, and that of two drafts, is in the q buffer at once."""


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of SSD."""

    gamma: int = planned(
        "K, draft length: tokens of a draft and of each branch; 0 takes about as many as can be drafted while "
        "the target verifies.",
        high=LONGEST,
        role="length",
    )
    fanout: str = setting(
        "uniform",
        "Guesses at each place: uniform, geometric (more where an outcome is likely), or a list for the "
        "places 0 to gamma, such as [3,3,2,2].",
        high=200,
    )
    forks: int = setting(
        3, "F, guesses per place; geometric has as many in the mean.", low=1, high=MOST_FORKS
    )
    acceptance: float = setting(0.8, "a, acceptance rate that geometric expects.", low=0.05, high=0.95)
    exponent: float = setting(
        1.0, "r, exponent of the power law by which geometric expects misses.", low=0, high=10
    )
    backup: str = setting(
        "neural",
        "After a miss: neural drafts then, none verifies one row without a draft.",
        choices=("neural", "none"),
    )
    saguaro: float = setting(
        1.0,
        "C, factor of the probability of the drafter's F most probable tokens at each place of a draft, above "
        "temperature 0: less makes hits more frequent, and accepted tokens fewer. 1 is ordinary sampling.",
        low=0.01,
        high=1,
    )
    drafts: str = chain_drafts()
    schedule: str = chain_schedule("gamma / 2 or gamma")
    confidence: float = chain_confidence()
    off_below: float = chain_off()


# Fan-out: the guesses at the places 0 to gamma.


def fans(cfg: Config) -> tuple[int, ...]:
    """Return F_0 to F_gamma; UsageError if the setting does not fit."""
    if cfg.fanout == "uniform":
        return (cfg.forks,) * (cfg.gamma + 1)
    if cfg.fanout == "geometric":
        return geometric(cfg.gamma, cfg.forks * (cfg.gamma + 1), cfg.acceptance, cfg.exponent)
    return listed(cfg.fanout)


def geometric(gamma: int, budget: int, acceptance: float, exponent: float) -> tuple[int, ...]:
    """Return the fan-out that SSD derives for a power law of misses, at least 1 at each place.

    F_j is proportional to a^(j / (1 + r)), and at the last place, after which no token is rejected,
    to a^(gamma / (1 + r)) (1 - a)^(-1 / (1 + r)). The sum is `budget`, at least gamma + 1.
    """
    shares = [acceptance ** (place / (1 + exponent)) for place in range(gamma + 1)]
    shares[gamma] *= (1 - acceptance) ** (-1 / (1 + exponent))
    counts = [1] * (gamma + 1)
    for _ in range(budget - gamma - 1):  # rounded by d'Hondt's rule
        most = max(range(gamma + 1), key=lambda place: shares[place] / (counts[place] + 1))
        counts[most] += 1
    return tuple(counts)


def listed(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as `[3,3,2,2]`; UsageError if it is none."""
    if not re.fullmatch(r"\[\s*\d{1,3}(\s*,\s*\d{1,3})*\s*\]", text):
        raise UsageError(
            f"fanout is {shown(text)}; it must be uniform, geometric, or a list of numbers such as [3,3,2,2]",
            "fanout",
        )
    counts = tuple(map(int, text.strip("[]").split(",")))
    for place, count in enumerate(counts):
        check_range(f"fanout at place {place}", count, 1, MOST_FORKS)
    check_range("the number of places of fanout", len(counts), 2, LONGEST + 1)
    return counts


# The plan.


def plan(cfg: Config, situation: Situation) -> Config:
    """Choose gamma where it is 0, and check that settings fit together.

    Beside one verification, the drafter's glue and gamma steps take gamma + 1 of its forwards.
    """
    cfg = own_confidence(cfg)
    places = 0 if cfg.fanout in ("uniform", "geometric") else len(listed(cfg.fanout))
    if not cfg.gamma:
        cfg = replace(cfg, gamma=places - 1 if places else min(LONGEST, max(1, round(situation.c()) - 1)))
    if places not in (0, cfg.gamma + 1):
        raise UsageError(
            f"fanout has {places} numbers; with gamma {cfg.gamma} it must have {cfg.gamma + 1}, one for "
            "each number of accepted tokens from 0 on",
            "fanout",
        )
    rows = sum(fans(cfg)) * cfg.gamma
    if rows > MOST_ROWS:
        raise UsageError(
            f"{sum(fans(cfg))} branches of gamma {cfg.gamma} are {rows} tokens; they must be at most "
            f"{MOST_ROWS}: guess fewer tokens, or use a smaller gamma",
            "gamma",
        )
    if cfg.saguaro < 1 and cfg.drafts == "greedy":
        raise UsageError(
            f"saguaro is {cfg.saguaro:g}; it changes how drafts are sampled: leave it at 1, or choose drafts sampled",
            "saguaro",
        )
    return cfg


def layout(cfg: Config) -> Layout:
    gamma = max(1, cfg.gamma)
    return Layout(Separate(), slack=gamma + 1 + sum(fans(replace(cfg, gamma=gamma))) * gamma)


# Rounds.


@method(
    title="SSD",
    source="SSD (ICLR 2026), section 4",
    config=Config,
    plan=plan,
    layout=layout,
)
async def decode(run: Run, cfg: Config) -> None:
    forks, damping, sampled = fans(cfg), damping_of(cfg), cfg.drafts == "sampled"
    schedule, branch = schedule_of(cfg), None
    ask = _next(schedule, cfg)
    while not run.done:
        draft = await _completed(run, cfg, ask, branch, damping)
        ask = _next(schedule, cfg)
        fan = run.drafter.fan(run.x, draft, forks, ask, sampled=sampled, damping=damping)
        verdict = await run.target.verify(run.x, draft)
        schedule.learn(verdict)
        run.commit(verdict)
        branch = await fan.take(verdict)


def _next(schedule: Schedule, cfg: Config) -> Ask:
    """Return what the schedule asks for, at most gamma tokens: the fan-out has no more places."""
    ask = schedule.next()
    return ask._replace(tokens=min(ask.tokens, cfg.gamma))


async def _completed(
    run: Run, cfg: Config, ask: Ask, branch: Draft | None, damping: tuple[Damping, ...]
) -> Draft:
    """Draft a branch to its end; without one, at the start and after a miss, use the backup."""
    if branch is None and ask.tokens and cfg.backup == "none":
        return Draft.empty()
    sampled = cfg.drafts == "sampled"
    return await run.drafter.propose(run.x, ask, begun=branch, sampled=sampled, damping=damping)


def damping_of(cfg: Config) -> tuple[Damping, ...]:
    """Return Saguaro sampling for each token of a draft: its place's F and C; empty for C = 1."""
    return tuple(Damping(cfg.saguaro, count) for count in fans(cfg)[:-1]) if cfg.saguaro < 1 else ()
