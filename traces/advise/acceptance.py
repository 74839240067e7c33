"""The acceptance that somebody expects: a rate, a range, rates of places, or a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import sqrt
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from specscope.engine.errors import UsageError, shown
from specscope.engine.types import check_range
from specscope.traces.advise.others import KINDS, Other
from specscope.traces.facts.closed_forms import bisect, rate_of_share
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import LevelRate, first_levels, level_rate

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

UNKNOWN = (0.5, 0.95)
"""Acceptance rates where none is known; papers print 0.69 to 0.99, for pairs that they chose."""
LEAST_RATE, MOST_RATE = 0.01, 0.99
MOST_PLACES = 64
"""Places of a draft whose rates are typed."""
LEAST_TESTS = 30
"""Tests that a place of a run needs for a rate of its own; all later places have one together."""


class Expected(NamedTuple):
    """Fields of a `Question`."""

    rates: tuple[float, float]
    places: tuple[float, ...] = ()
    recorded: Trace | None = None


def parse_rates(text: str) -> Expected:
    """Return the rates of `0.7`, `0.6:0.8`, `unknown`, or `0.9,0.8,0.6`.

    Numbers with commas are the rates of the places of a draft; the last one is that of all later
    places.
    """
    if text == "unknown":
        return Expected(UNKNOWN)
    places = text.split(",")
    ends = text.split(":")
    try:
        found = [float(part) for part in (places if len(places) > 1 else ends)]
        if len(places) == 1 and len(found) > 2:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"the acceptance rate is {shown(text)}; write a rate as in 0.7, a range as in 0.6:0.8, the rates of the "
            "places of a draft as in 0.9,0.8,0.7, or unknown"
        ) from None
    if len(places) == 1:
        return Expected((found[0], found[-1]))
    check_range("the number of places", len(found), 2, MOST_PLACES)
    for place in found:
        check_range("the acceptance rate of a place", place, LEAST_RATE, MOST_RATE)
    rate = round(single(found), 4)
    return Expected((rate, rate), tuple(found))


def check_rates(rates: tuple[float, float]) -> None:
    for rate in rates:
        check_range("the acceptance rate", rate, LEAST_RATE, MOST_RATE)
    low, high = rates
    if low > high:
        raise UsageError(
            f"the acceptance rate is {low:g}:{high:g}; the lowest one comes first", "the acceptance rate"
        )


def single(places: Sequence[float]) -> float:
    """Return the one rate at which a draft of that length has as many accepted tokens."""
    return rate_of_share(sum(accumulate(places, mul)) / len(places), len(places))


@lru_cache(maxsize=256)
def moved(places: tuple[float, ...], rate: float) -> tuple[float, ...]:
    """Return the same power of all places' rates, that whose `single` rate is this one."""

    def negative(power: float) -> float:
        return -sum(accumulate((place**power for place in places), mul))

    power = bisect(negative, -sum(rate**n for n in range(1, len(places) + 1)), 0.0, 1e3)
    return tuple(_within(place**power) for place in places)


def parse_other(kind: str, text: str | None) -> tuple[Other, ...]:
    """Return drafts without the drafter and the acceptance that is typed for them; none without."""
    if not text:
        return ()
    try:
        rates, places, _ = parse_rates(text)
        check_rates(rates)
    except UsageError as error:
        raise UsageError(f"{KINDS[kind].drafts}: {error}") from None
    return (Other(kind, rates, places),)


def acceptance_of(trace: Trace) -> Expected:
    """Return the acceptance of a stored or imported run, with two standard errors to either side.

    UsageError if the run does not tell which of its tested drafts were accepted.
    """
    levels = first_levels(trace) if trace.decisions else measure(trace).per_level
    rate, tested = level_rate(levels), sum(level.reached for level in levels)
    if rate is None or not tested:
        raise UsageError(
            f"run {trace.header.run_id} does not tell how many drafts were accepted by place; take a run of a method with "
            "a drafter, or a log or counters with rates per position"
        )
    error = 2 * sqrt(rate * (1 - rate) / tested)
    low, high = (_within(end) for end in (rate - error, rate + error))
    return Expected((round(low, 3), round(high, 3)), _places(levels), trace)


def _places(levels: Sequence[LevelRate]) -> tuple[float, ...]:
    """Return a rate for each place with enough tests, and one for all later places."""
    enough = next((i for i, level in enumerate(levels) if level.reached < LEAST_TESTS), len(levels))
    later = levels[enough:]
    if sum(level.reached for level in later) < LEAST_TESTS and enough:
        enough, later = enough - 1, levels[enough - 1 :]
    parts = [*((level,) for level in levels[:enough]), *([later] if later else [])]
    found = tuple(round(_within(level_rate(part) or 0.0), 3) for part in parts)
    return found if len(found) > 1 else ()


def _within(rate: float) -> float:
    return min(max(rate, LEAST_RATE), MOST_RATE)
