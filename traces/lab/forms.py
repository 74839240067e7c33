"""Closed forms of the map's methods: (place, settings) -> speed-up over plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import product
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.drafting.pace import Rate
from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.simulate.latency import FITTED_SIZE
from specscope.engine.simulate.profile import Profile
from specscope.traces.facts.closed_forms import (
    block_speedup,
    dsi_blocks_speedup,
    even,
    layer_parallel_speedup,
    pearl_speedup,
    specbranch_speedup,
    speculative_speedup,
    ssd_speedup,
)

if TYPE_CHECKING:
    from specscope.engine.simulate.latency import Latency


class MapPlace(NamedTuple):
    """Where a method runs."""

    times: str | Latency
    """A profile whose pairs are named by c, or the times of a pair."""
    c: float
    rate: Rate
    doubt: float
    misses: float


Form = Callable[..., float]
"""(place, settings by name) -> speed-up; 0 for settings that do not go together."""


def _branches(at: MapPlace, gamma: int, length: int, branches: int, threshold: float) -> float:
    if branches * length > MOST_NODES:
        return 0.0
    return specbranch_speedup(at.rate, gamma, at.c, length, branches, threshold, at.doubt, at.misses)


def _servers(at: MapPlace, lookahead: int, sp: int) -> float:
    c = max(1.0, at.c, 0.0 if isinstance(at.times, str) else at.times.c)
    if c > lookahead * sp + 1e-9:
        return 0.0
    return dsi_blocks_speedup(at.rate, min(lookahead, floor(c + 1e-9)), c)


def _layers(at: MapPlace, gamma: int, devices: int, size: int = FITTED_SIZE) -> float:
    if devices > size:
        return 0.0
    latency = _latency(at.times, f"c{at.c}") if isinstance(at.times, str) else at.times
    drafter, share = latency("drafter", 1, 0), 1 / at.c
    if isinstance(at.times, str):
        share = drafter / latency("target", 1, 0)  # whole microseconds
    fuzzy = latency.parallel("drafter", 1, 0, size, devices=devices) / drafter
    return layer_parallel_speedup(at.rate, gamma, share, fuzzy * share)


FORMS: dict[str, Form] = {
    "turns": lambda at, gamma: speculative_speedup(at.rate, gamma, at.c),
    "overlapped": lambda at, gamma: pearl_speedup(at.rate, gamma, at.c),
    "cache": lambda at, gamma, forks: ssd_speedup(at.rate, gamma, at.c, forks, at.misses),
    "branches": _branches,
    "servers": _servers,
    "layers": _layers,
    "block": lambda at, gamma: block_speedup(at.rate, gamma, at.c),
}


def verified_rows(settings: Mapping[str, Any]) -> int:
    """Return the rows of the widest verification of a sequence with these settings."""
    branches = settings.get("length", 0) * settings.get("branches", 1)
    return 1 + max(settings.get("gamma", 0), settings.get("lookahead", 0), branches)


def best_settings(
    form: Form, at: MapPlace, given: Mapping[str, Any], search: Mapping[str, int | str]
) -> dict[str, Any]:
    """Return the settings with the greatest speed-up; of equal ones, the smallest.

    A number searches 1 to itself, `rate` the acceptance rate and 0.
    """
    ranges = [(even(at.rate), 0.0) if most == "rate" else range(1, int(most) + 1) for most in search.values()]
    found = (dict(zip(search, values, strict=True)) for values in product(*ranges))
    return {**given, **max(found, key=lambda settings: form(at, **given, **settings))}


@cache
def _latency(profile: str, pair: str) -> Latency:
    return Profile.load(profile).latency(pair)
