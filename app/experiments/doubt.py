"""How far a speed-up of a comparison may be off, and how far the order of the methods holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import Any, NamedTuple

from specscope.engine.trace.trace import Trace
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.race import ONE_PASS, Speed

ERRORS = 2
"""Standard errors on either side."""


class Doubt(NamedTuple):
    """The range of a speed-up."""

    low: float
    high: float
    source: str
    """How it arose."""

    @staticmethod
    def figures(doubt: Doubt | None) -> dict[str, Any]:
        """Return the range as figures of a method or a server."""
        low, high, source = doubt or (None, None, None)
        return {"speedup_low": low, "speedup_high": high, "speedup_from": source}


def doubt_of(
    mine: Mapping[int, Trace], plain: Mapping[int, Trace], passes: tuple[Sequence[float], Sequence[float]]
) -> Doubt | None:
    """Return the range of a speed-up over plain decoding; None if it is unknown.

    Args:
        mine: The runs by number of the first prompt.
        plain: Those of plain decoding.
        passes: Tokens per second of all measured passes of both; empty in virtual time, which does
            not vary.
    """
    found = [*filter(None, (_over_prompts(mine, plain), _over_passes(*passes)))]
    if not found:
        return None
    return Doubt(
        min(one.low for one in found),
        max(one.high for one in found),
        " and ".join(one.source for one in found),
    )


def by_prompt(mine: Mapping[int, Trace], plain: Mapping[int, Trace]) -> dict[int, float]:
    """Return the speed-up on each prompt or batch that both have decoded."""
    seconds = _seconds(mine, plain)
    return {i: plain_each / own for i, (own, plain_each) in seconds.items()}


def _seconds(mine: Mapping[int, Trace], plain: Mapping[int, Trace]) -> dict[int, tuple[float, float]]:
    """Return the seconds per token of both, by prompt, for those with a speed of both."""
    both = {i: (_speed(mine[i]), _speed(plain[i])) for i in mine if i in plain}
    return {i: (1 / own, 1 / theirs) for i, (own, theirs) in both.items() if own and theirs}


def _over_prompts(mine: Mapping[int, Trace], plain: Mapping[int, Trace]) -> Doubt | None:
    """Return two standard errors on either side, by leaving out each prompt in turn (jackknife)."""
    seconds = _seconds(mine, plain)
    tokens = {i: (measure(mine[i]).tokens or 0, measure(plain[i]).tokens or 0) for i in seconds}
    count = len(seconds)
    if count < 2:
        return None

    def ratio(prompts: list[int]) -> float:
        own, theirs = (
            sum(tokens[i][side] for i in prompts) / sum(tokens[i][side] * seconds[i][side] for i in prompts)
            for side in (0, 1)
        )
        return own / theirs

    value, without = ratio([*seconds]), [ratio([k for k in seconds if k != i]) for i in seconds]
    mean = fmean(without)
    error = ERRORS * sqrt((count - 1) / count * sum((one - mean) ** 2 for one in without))
    return Doubt(value - error, value + error, f"two standard errors over {count} prompts")


def _over_passes(mine: Sequence[float], plain: Sequence[float]) -> Doubt | None:
    if not mine or not plain or not min(*mine, *plain):
        return None
    own, theirs = (_range(speeds) for speeds in (mine, plain))
    found = own.over(theirs)
    source = f"the range of {len(mine)} passes" if len(mine) > 1 else f"{ONE_PASS:.0%} for a single pass"
    return Doubt(found.low, found.high, source)


def _range(speeds: Sequence[float]) -> Speed:
    value = fmean(speeds)
    if len(speeds) == 1:
        return Speed(value, value * (1 - ONE_PASS), value * (1 + ONE_PASS), 1)
    return Speed(value, min(speeds), max(speeds), len(speeds))


def ranked(methods: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the methods, the greatest speed-up first; those without one are last."""
    return sorted(methods, key=lambda key: -(methods[key]["speedup"] or 0.0))


def orders(methods: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return on how many prompts each method is faster than the next one of the ranking."""
    found = list[dict[str, Any]]()
    for first, second in pairwise(ranked(methods)):
        mine, theirs = (methods[key]["speedup_by_prompt"] for key in (first, second))
        both = [i for i in mine if i in theirs]
        if len(both) > 1:
            faster = sum(mine[i] > theirs[i] for i in both)
            found.append({"first": first, "second": second, "faster": faster, "prompts": len(both)})
    return found


def _speed(trace: Trace) -> float | None:
    return measure(trace).tokens_per_second
