"""What a round of a draft brings and takes: the one model that plans and advice predict with.

Sources: Leviathan et al. 2023, theorem 3.8 (draft, then verify); PEARL, section 3.3 and algorithm 2
(both at once); DSI, algorithm 1 (several target servers). Here each level has its own acceptance
rate, forwards have measured times, and a round has a measured time outside of its forwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple, TypeAlias

import numpy as np

_LEAST = 1e-3
"""Least probability that a sum of a geometric series divides by."""

MISSES = 0.7
"""Exponent of missed tokens: where a drafter's token is wrong, the target's token is not among its
next F choices in (1 + F)^-0.7 of the cases. The bundled pair misses 62, 45, 38 and 33 % with F = 1
to 4, where the power law has 62, 46, 38 and 32 % (`specscope run --method speculative`, the places
of corrected tokens in `top_q`). SSD has such a law, too (ICLR 2026)."""

Rate: TypeAlias = float | tuple[float, ...]
"""An acceptance rate, or those of the places of a draft; the last is that of all later ones."""

Curve: TypeAlias = tuple[tuple[int, float], ...]
"""Measured (number, seconds) pairs, the number rising; times between them are interpolated."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Measured facts about one method with one pair on one machine."""

    verify: Curve
    """Rows -> seconds of one forward of the target."""
    first: Curve
    """Levels of a draft -> seconds of its first forward."""
    later: Curve
    """Rows -> seconds of each further forward of a draft, one per level; empty if the first forward
    drafts all levels."""
    outside: float
    """Seconds of a round outside of these forwards."""
    rates: tuple[tuple[float, ...], ...]
    """[level][rank]: how often the accepted child is the child of this rank, falling, given that
    the node above was accepted and had children."""
    orders: tuple[tuple[float, ...], ...]
    """[levels - 1][i]: share of rounds that accept the drafter's i-th most probable node of the
    first `levels` levels."""
    rounds: int
    others: float = 0.0
    """Cores that other programs used."""
    shared: bool = False
    """Whether both models are on one GPU, whose memory their forwards read in turns."""


class Pace(NamedTuple):
    """What a round brings and takes, in the mean."""

    tokens: float
    seconds: float


def in_turns(probe: Probe, nodes: Sequence[float]) -> Pace:
    """Return the pace of rounds that draft, then verify.

    `nodes` are those of each level, 1 in a chain; the probe's first rank is the rate of a whole
    level: some node of it is accepted.
    """
    reached = accumulate((_rate(probe, level) for level in range(len(nodes))), mul)
    return Pace(1 + sum(reached), round_seconds(probe, sum(nodes), [1, *nodes[:-1]]))


def overlapped(probe: Probe, gamma: int) -> Pace:
    """Return the pace of PEARL's rounds, which draft and verify at the same time.

    A pre-verify round takes max(T(draft), T(1 row)), emits one token, and a post-verify round
    follows with the acceptance rate of level 1. A post-verify round of gamma rows takes
    max(T(draft), T(gamma rows)) and repeats while all of its gamma tokens are accepted. The times
    were measured one model at a time; on one GPU, which reads the weights of one model after the
    other's, a round takes their sum (`colocated_gain` in docs/bench.md). The jobs of a round start
    together, so the time outside of the forwards is that of one.
    """
    both = sum if probe.shared else max
    first, *later = (_rate(probe, level) for level in range(gamma + 1))
    draft = draft_seconds(probe, [1] * gamma)
    reached = list(accumulate(later, mul, initial=1.0))  # each token of a post-verify round
    entered = max(first, _LEAST)
    pre, post = 1 / entered, 1 / max(1 - reached[gamma], _LEAST)  # rounds from one correction to the next
    tokens = pre + post * sum(reached[:gamma])
    verify, last = (seconds_at(probe.verify, rows) for rows in (1, gamma))
    seconds = pre * both((draft, verify)) + post * both((draft, last))
    return Pace(tokens / (pre + post), seconds / (pre + post) + probe.outside / 2)


def with_servers(probe: Probe, lookahead: int) -> Pace:
    """Return the pace of DSI's turns: blocks are drafted until a token of one is wrong.

    At one acceptance rate a, that of level 1, a turn emits 1 / (1 - a) tokens and drafts
    1 / (1 - a^lookahead) blocks; the verification of the last one ends it.
    """
    wrong = max(1 - _rate(probe, 0), _LEAST)
    blocks = 1 / (1 - (1 - wrong) ** lookahead)
    drafts = blocks * draft_seconds(probe, [1] * lookahead)
    return Pace(1 / wrong, drafts + seconds_at(probe.verify, lookahead + 1) + probe.outside)


def plain_seconds(probe: Probe) -> float:
    """Return the time of an autoregressive token, which has one of a round's two jobs."""
    return seconds_at(probe.verify, 1) + probe.outside / 2


def round_seconds(probe: Probe, nodes: float, parents: Sequence[float]) -> float:
    """Return the time of a round of turns; `parents` as in `draft_seconds`."""
    return draft_seconds(probe, parents) + seconds_at(probe.verify, nodes + 1) + probe.outside


def draft_seconds(probe: Probe, parents: Sequence[float]) -> float:
    """Return the time of a draft's forwards, given the nodes with children of each level."""
    later = sum(seconds_at(probe.later, rows) for rows in parents[1:]) if probe.later else 0.0
    return seconds_at(probe.first, len(parents)) + later


def seconds_at(curve: Curve, number: float) -> float:
    numbers, seconds = zip(*curve, strict=True)
    return float(np.interp(number, numbers, seconds))


def _rate(probe: Probe, level: int) -> float:
    """Return a level's rate of its first rank; below the measured levels, the last one's."""
    return probe.rates[min(level, len(probe.rates) - 1)][0]
