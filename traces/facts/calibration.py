"""Calibration: the probability q that the drafter gave its tokens, against their acceptance.

Only tested tokens count: a token behind the first rejection of its draft was never tested, and so
says nothing about acceptance. Pure functions on a trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from specscope.traces.facts.joined import joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.events import Decision
    from specscope.engine.trace.trace import Trace

BINS = 10
"""Equal parts of [0, 1]; the last one contains 1."""
_DEVIATIONS = 1.96
"""Standard deviations of a 95 % interval."""


class Trial(NamedTuple):
    """A tested draft token whose q is recorded."""

    place: int
    """1 is right after the prefix; of a tree the level."""
    q: float
    chance: float | None
    """See `chance_of`."""
    accepted: bool


@dataclass(frozen=True, slots=True)
class Bin:
    """The trials whose q is in one part of [0, 1]."""

    low: float
    """Lower bound of the part."""
    tested: int
    accepted: int
    q: float
    """Mean q of the trials."""
    expected: float | None
    """Mean chance of the trials; None unless all of them have one."""
    least: float
    """Bounds of the 95 % interval of the acceptance (Wilson 1927)."""
    most: float

    @property
    def rate(self) -> float:
        return self.accepted / self.tested


@dataclass(frozen=True, slots=True)
class PlaceCalibration:
    """The calibration at one place of the draft."""

    place: int
    """0 for all places together."""
    tested: int
    accepted: int
    q: float
    expected: float | None
    error: float
    """Expected calibration error (ECE, Guo et al. 2017, arXiv:1706.04599): the mean over the bins
    of |accepted / tested - mean q|, weighted by tested tokens."""
    bins: tuple[Bin, ...]
    """Those with trials, by rising q."""


def chance_of(d: Decision, *, greedy: bool) -> float | None:
    """Return the probability with which the rule accepts a drafted token; None if nothing is drawn.

    A draft sampled from q is accepted with min(1, p/q), a draft that the prefix determines with p.
    """
    if greedy or d.node < 0 or d.p is None:
        return None
    if d.rule == "match":
        return d.p
    return min(1.0, d.p / d.q) if d.rule == "ratio" and d.q else None


def trials(trace: Trace) -> list[Trial]:
    greedy = trace.header.sampling.get("temperature", 0) == 0
    return [
        Trial(place, d.q, chance_of(d, greedy=greedy), d.outcome == "accepted")
        for one in joined(trace).values()
        for place, d in one.placed
        if d.outcome in ("accepted", "rejected") and d.q is not None and isfinite(d.q)
    ]


def calibration(tested: Sequence[Trial], place: int = 0) -> PlaceCalibration | None:
    """Return the calibration at a place, 0 for all places; None without a trial there."""
    mine = [one for one in tested if place in (0, one.place)]
    if not mine:
        return None
    parts: dict[int, list[Trial]] = {}
    for one in mine:
        parts.setdefault(min(int(one.q * BINS), BINS - 1), []).append(one)
    bins = tuple(_bin(number, parts[number]) for number in sorted(parts))
    gaps = sum(b.tested * abs(b.rate - b.q) for b in bins)
    accepted = sum(b.accepted for b in bins)
    return PlaceCalibration(place, len(mine), accepted, *_means(mine), gaps / len(mine), bins)


def calibrations(tested: Sequence[Trial]) -> list[PlaceCalibration]:
    """Return the calibration of all places together, then of each place; empty without trials."""
    places = sorted({one.place for one in tested})
    found = (calibration(tested, place) for place in (0, *places))
    return [one for one in found if one is not None]


def _bin(number: int, part: Sequence[Trial]) -> Bin:
    accepted = sum(one.accepted for one in part)
    q, expected = _means(part)
    return Bin(number / BINS, len(part), accepted, q, expected, *wilson(accepted, len(part)))


def _means(part: Sequence[Trial]) -> tuple[float, float | None]:
    chances = [one.chance for one in part if one.chance is not None]
    return fmean(one.q for one in part), fmean(chances) if len(chances) == len(part) else None


def wilson(accepted: int, tested: int) -> tuple[float, float]:
    """Return the bounds of the 95 % interval of a share, inside of [0, 1] for few trials, too."""
    share, z = accepted / tested, _DEVIATIONS**2 / tested
    centre = (share + z / 2) / (1 + z)
    half = (z * share * (1 - share) + z * z / 4) ** 0.5 / (1 + z)
    return max(0.0, centre - half), min(1.0, centre + half)
