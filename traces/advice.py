"""Which setting would have been faster, predicted from a run's own acceptance and times.

Sources: Leviathan et al. 2023, theorem 3.8 (draft, then verify), here with an acceptance rate and
a number of nodes for each level; PEARL algorithm 2 (both at once); DSI algorithm 1 (servers). All
three take acceptances as independent. A prediction for the run's own method is scaled by measured
speed-up / predicted speed-up of the used setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from engine.errors import UsageError
from engine.layout import Layout, Separate
from engine.methods import METHODS
from traces.rates import Rates, rates_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engine.methods.registry import Method
    from engine.trace.events import Header
    from engine.trace.trace import Trace
    from traces.metrics import Metrics

Kind = Literal["turns", "overlap", "servers"]
"""How drafts and verifications follow each other: in turns, one of each at the same time, or one
drafter with several target servers."""
LENGTHS = ("gamma", "depth", "copy", "lookahead")
"""The settings that are the length of a draft."""
GAIN = 1.05
"""Smallest predicted gain for which another setting is advised."""
LONGEST = 2
"""Longest predicted chain of a drafter, as a multiple of the longest measured one. Longer trees and
copies are not predicted: their nodes and matches are unknown."""


class Advice(TypedDict):
    """A setting that is predicted to be faster than the one that ran."""

    method: str
    title: str
    config: dict[str, Any]
    """All settings of the advised run."""
    setting: str
    """The length that changes, for example `gamma 3`."""
    speedup: float
    """The predicted speed-up over plain decoding."""
    source: str
    """The formula."""


def advise(
    trace: Trace,
    metrics: Metrics,
    baseline: Trace,
    speedup: float,
    rivals: Sequence[tuple[Header, float]] = (),
) -> Advice | None:
    """Return the setting with the largest predicted speed-up; None if the gain is below `GAIN`.

    It is not a setting of a rival, and faster than each of them.

    Args:
        trace: A run that is done.
        metrics: Its metrics.
        baseline: The run's baseline, which `traces.comparable` chooses.
        speedup: The measured speed-up over it.
        rivals: The runs with the same baseline, and their speed-ups.
    """
    method = METHODS.get(trace.header.method)
    rates = rates_of(trace, metrics, baseline)
    if method is None or rates is None:
        return None
    run = [(header.method, header.config) for header, _ in rivals]
    new = [a for a in _candidates(trace, method, rates, speedup) if (a["method"], a["config"]) not in run]
    best = max(new, key=lambda a: a["speedup"], default=None)
    fastest = max((speedup, *(speed for _, speed in rivals)))
    return best if best and best["speedup"] >= GAIN * fastest else None


def longest_drafter(trace: Trace, metrics: Metrics, baseline: Trace) -> float | None:
    """Return the time of a drafter forward below which one drafted token per round would pay.

    The unit is a plain token; the result is at most 0 if even a drafter that takes no time would
    not pay, and None without a model that drafts.
    """
    rates = rates_of(trace, metrics, baseline)
    if rates is None or not rates.draft or rates.once:
        return None
    return 1 + (rates.levels[0] if rates.levels else rates.any) - rates.forward(2) - rates.rest


def predicted(kind: Kind, rates: Rates, length: int, levels: bool = True) -> float:
    """Return the predicted speed-up over plain decoding of drafts of `length`.

    Args:
        kind: The order of drafts and verifications.
        rates: The measured rates.
        length: Tokens, or levels of a tree, drafted before each verification.
        levels: For `turns`: use the acceptance of each level instead of the rate of all tests.
    """
    formulas: dict[Kind, Callable[[Rates, int], float]] = {"overlap": _overlap, "servers": _servers}
    return formulas[kind](rates, length) if kind in formulas else _turns(rates, length, levels=levels)


def _turns(rates: Rates, length: int, *, levels: bool) -> float:
    """Tokens / time of a round that drafts, then verifies (Leviathan et al., theorem 3.8)."""
    tokens = reached = 1.0
    rows = 1.0
    for level in range(length):
        known = levels and level < len(rates.levels)
        reached *= rates.levels[level] if known else rates.any
        tokens += reached
        rows += rates.nodes[min(level, len(rates.nodes) - 1)] if levels and rates.nodes else 1
    time = rates.draft * (1 if rates.once else length) + rates.forward(rows) + rates.rest
    plain = 1 - rates.drafting
    return (rates.drafting * tokens + plain) / (rates.drafting * time + plain)


def _overlap(rates: Rates, gamma: int) -> float:
    """PEARL's two modes as a chain of states.

    Pre-verify emits one token; with probability a its first draft token is right, and post-verify
    follows. Post-verify emits 1 + a + ... + a^(gamma - 1) tokens in the mean, and is followed by
    itself if all gamma tokens are right. A step lasts as long as the longer of its two sides.
    """
    a = rates.any
    pre, post = 1 - a**gamma, a if gamma > 1 else 0.0
    tokens = pre + post * sum(a**i for i in range(gamma))
    draft = gamma * rates.draft
    time = pre * max(draft, rates.forward(1)) + post * max(draft, rates.forward(gamma))
    return tokens / (time + rates.rest * (pre + post)) if time else 1.0


def _servers(rates: Rates, lookahead: int) -> float:
    """DSI's turns: blocks of `lookahead` tokens are drafted until one is wrong, then verified.

    A turn emits 1 / (1 - a) tokens in the mean, and drafts 1 / (1 - a^lookahead) blocks.
    """
    a = min(rates.any, 0.999)
    time = lookahead * rates.draft / (1 - a**lookahead) + rates.forward(lookahead + 1) + rates.rest
    return 1 / (1 - a) / time


SOURCES: dict[Kind, str] = {
    "turns": "Leviathan et al. 2023, theorem 3.8",
    "overlap": "the two modes of PEARL, algorithm 2",
    "servers": "the turns of DSI, algorithm 1",
}


def kind_of(layout: Layout, config: Mapping[str, Any]) -> Kind | None:
    """Return the order of drafts and verifications with these settings; None if it is unknown."""
    place = layout.arrangement
    if not isinstance(place, Separate):
        return None
    if place.turns or not place.drafters:
        return "turns" if layout.batch == 1 else None
    if "lookahead" in config:
        return "servers" if place.drafters == 1 else None
    return "overlap" if "gamma" in config else None


def _candidates(trace: Trace, method: Method, rates: Rates, speedup: float) -> Iterable[Advice]:
    used = trace.header.config
    try:
        layout = method.layout(method.configure(used))
    except UsageError:  # a trace of another version
        return
    kind, name = kind_of(layout, used), next((n for n in LENGTHS if n in used), "")
    if kind and name and used[name] and _is_plain_draft(method, used, kind):
        scale = speedup / predicted(kind, rates, used[name])
        for length in _lengths(method, name, kind, rates, used):
            if length != used[name]:
                yield _advice(
                    method, {**used, name: length}, name, scale * predicted(kind, rates, length), kind
                )
    if layout.needs_drafter and _apart(trace):
        yield from _others(method, rates)


def _others(method: Method, rates: Rates) -> Iterable[Advice]:
    """Yield other methods that draft chains of gamma tokens with the same drafter."""
    for other in METHODS.values():
        cfg = {s.name: s.default for s in other.settings()}
        layout = other.layout(other.Config())
        kind = kind_of(layout, cfg)
        simple = (
            layout.needs_drafter and "gamma" in cfg and (kind == "overlap" or set(cfg) <= {"gamma", "drafts"})
        )
        if other.key == method.key or kind is None or not simple:
            continue
        for gamma in range(1, 1 + max(4, LONGEST * len(rates.levels))):
            yield _advice(
                other, {**cfg, "gamma": gamma}, "gamma", predicted(kind, rates, gamma, levels=False), kind
            )


def _lengths(method: Method, name: str, kind: Kind, rates: Rates, used: Mapping[str, Any]) -> Iterable[int]:
    """Return the lengths of this setting that the rates can predict and the method allows."""
    setting = next(s for s in method.settings() if s.name == name)
    chain = rates.draft and all(nodes <= 1 for nodes in rates.nodes)
    most = len(rates.levels) if not chain else LONGEST * max(used[name], len(rates.levels))
    least = int(setting.low or 1)
    if kind == "servers" and rates.draft:
        least = max(least, ceil(rates.forward(1) / rates.draft / max(1, used.get("sp", 1)) - 1e-9))
    return range(least, 1 + int(min(most, setting.high or most)))


def _is_plain_draft(method: Method, used: Mapping[str, Any], kind: Kind) -> bool:
    """Return whether the formulas describe these settings: all others have their defaults."""
    if {"total", "heads", "window"} & set(used):  # forwards are not one per drafted level
        return False
    free = {*LENGTHS, "sp", "stages"}
    usual = all(used.get(s.name, s.default) == s.default for s in method.settings() if s.name not in free)
    return kind == "turns" or usual


def _advice(method: Method, config: dict[str, Any], name: str, speedup: float, kind: Kind) -> Advice:
    setting = f"{name} {config[name]}"
    return Advice(
        method=method.key,
        title=method.title,
        config=config,
        setting=setting,
        speedup=speedup,
        source=SOURCES[kind],
    )


def _apart(trace: Trace) -> bool:
    """Return whether drafter and target have devices of their own."""
    roles = [device.role for device in trace.header.devices]
    return "drafter" in roles and "target" in roles
