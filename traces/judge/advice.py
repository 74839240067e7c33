"""Which setting would have been faster, predicted from a run's own acceptance and times.

Predicted by the model that plans drafts, too (`engine/drafting/pace.py`): a plan knows the measured
prompts, an advice the run's own acceptance and times. A prediction for the run's own method is
scaled by measured speed-up / predicted speed-up of the used setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from specscope.engine.drafting.pace import in_turns, overlapped, with_servers
from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods import METHODS
from specscope.engine.trace.recorder import LAYERS
from specscope.traces.facts.rates import RunRates, rates_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from specscope.engine.methods.registry import Method
    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics

Kind = Literal["turns", "overlap", "servers"]
"""How drafts and verifications follow each other: in turns, one of each at the same time, or one
drafter with several target servers."""
GAIN = 1.05
"""Smallest predicted gain for which another setting is advised."""
LONGEST = 2
"""Longest predicted chain of a drafter, as a multiple of the longest measured one. Longer trees and
copies are not predicted: their nodes and matches are unknown."""
SOURCES: dict[Kind, str] = {
    "turns": "Leviathan et al. 2023, theorem 3.8",
    "overlap": "the two modes of PEARL, algorithm 2",
    "servers": "the turns of DSI, algorithm 1",
}


class Advice(TypedDict):
    """A setting that is predicted to be faster than the one that ran."""

    method: str
    title: str
    config: dict[str, Any]
    setting: str
    speedup: float
    source: str


def advise(
    trace: Trace,
    metrics: Metrics,
    baseline: Trace,
    speedup: float,
    rivals: Sequence[tuple[Header, float]] = (),
) -> Advice | None:
    """Return the setting with the largest predicted speed-up; None if the gain is below `GAIN`.

    It is not a setting of a rival (a run with the same baseline, with its speed-up), and faster
    than each of them.
    """
    method = METHODS.get(trace.header.method)
    rates = rates_of(trace, metrics, baseline)
    if rates is None:
        return None
    run = [(header.method, header.config) for header, _ in rivals]
    found = _recorded(trace, rates, speedup) if method is None else _candidates(trace, method, rates, speedup)
    new = [a for a in found if (a["method"], a["config"]) not in run]
    best = max(new, key=lambda a: a["speedup"], default=None)
    fastest = max((speedup, *(speed for _, speed in rivals)))
    return best if best and best["speedup"] >= GAIN * fastest else None


def longest_drafter(trace: Trace, metrics: Metrics, baseline: Trace) -> float | None:
    """Return the time of a drafter forward below which one drafted token per round would pay.

    The unit is a plain token; the result is at most 0 if even a drafter that takes no time would
    not pay, and None without a model that drafts.
    """
    rates = rates_of(trace, metrics, baseline)
    return None if rates is None or not rates.draft or not rates.probe.later else limit(rates, 1)


def limit(rates: RunRates, length: int) -> float:
    """Return the longest time of a drafter forward, in plain tokens, at which drafts would pay."""
    free = replace(rates.probe, first=((1, 0.0),), later=((1, 0.0),))
    tokens, seconds = in_turns(free, [1] * length)
    return (tokens - seconds / rates.plain) / length


def predicted(kind: Kind, rates: RunRates, length: int, levels: bool = True) -> float:
    """Return the predicted speed-up over plain decoding of drafts of `length` tokens or levels.

    With `levels` and an order of `turns`, each level has its own acceptance, not the rate of all.
    """
    share, probe = 1.0, replace(rates.probe, rates=((rates.any,),))
    if kind == "turns":
        share, known = rates.drafting, rates.nodes[:length] if levels else ()
        nodes = (*known, *[known[-1] if known else 1.0] * (length - len(known)))
        pace = in_turns(rates.probe if levels else probe, nodes)
    else:
        pace = (overlapped if kind == "overlap" else with_servers)(probe, length)
    seconds = share * pace.seconds + (1 - share) * rates.plain
    return (share * pace.tokens + 1 - share) * rates.plain / seconds


def kind_of(layout: Layout, roles: Collection[str]) -> Kind | None:
    """Return the order of drafts and verifications; None if it is unknown, or has no formula.

    `roles` are those of the method's settings.
    """
    place = layout.arrangement
    if not isinstance(place, Separate) or "shape" in roles:
        return None
    if place.turns or not place.drafters:
        return "turns" if layout.batch == 1 else None
    if "lookahead" in roles:
        return "servers" if place.drafters == 1 else None
    return "overlap" if layout.lockstep and "length" in roles else None


def formula_of(method: Method, used: Mapping[str, Any]) -> Kind | None:
    """Return the order whose formula describes a run with these settings; None if none does."""
    settings = method.settings()
    kind = kind_of(method.layout(method.configure(used)), {s.role for s in settings})
    changed = {s.role for s in settings if used.get(s.name, s.default) != s.default}
    known = not changed & {"schedule", "cut"} and (
        kind == "turns" or changed <= {"length", "lookahead", "copies", "devices"}
    )
    return kind if known and method.length in used else None


def _candidates(trace: Trace, method: Method, rates: RunRates, speedup: float) -> Iterable[Advice]:
    used = trace.header.config
    try:
        kind, layout = formula_of(method, used), method.layout(method.configure(used))
    except UsageError:  # a trace of another version
        return
    name = method.length
    if kind and used[name]:
        scale = speedup / predicted(kind, rates, used[name])
        for length in _lengths(method, name, kind, rates, used):
            if length != used[name]:
                yield _advice(
                    method, {**used, name: length}, name, scale * predicted(kind, rates, length), kind
                )
    if layout.needs_drafter and _apart(trace):
        yield from _others(method, rates, at_once=not _share_a_card(trace))


def _recorded(trace: Trace, rates: RunRates, speedup: float) -> Iterable[Advice]:
    """Yield the other draft lengths of a recorded loop, if the time of a drafted token is known."""
    used, header = max(r.drafted for r in trace.rounds), trace.header
    if rates.whole:
        return
    scale, layers = speedup / predicted("turns", rates, used), header.config.get(LAYERS)
    most = (LONGEST if rates.draft else 1) * used
    for length in range(1, 1 + (min(most, layers) if isinstance(layers, int) else most)):
        if length != used:
            yield Advice(
                method=header.method,
                title=header.title,
                config={**header.config, "tokens of a draft": length},
                setting=f"drafts of {length} token{'s' * (length > 1)}",
                speedup=scale * predicted("turns", rates, length),
                source=SOURCES["turns"],
            )


def _others(method: Method, rates: RunRates, *, at_once: bool) -> Iterable[Advice]:
    """Yield other methods that draft chains of gamma tokens with the same drafter.

    Without `at_once` they draft and verify in turns: the measured times are those of models that
    work alone, and on one card models at work at once slow each other down.
    """
    for other in METHODS.values():
        cfg = {s.name: s.default for s in other.settings()}
        roles: set[str] = {s.role for s in other.settings()}
        layout, name = other.layout(other.Config()), other.length
        kind = kind_of(layout, roles)
        simple = (
            layout.needs_drafter
            and "length" in roles
            and (kind == "overlap" or roles <= {"length", "picks", "schedule", "cut"})
        )
        if other.key == method.key or kind is None or not simple or not (at_once or kind == "turns"):
            continue
        for length in range(1, 1 + max(4, LONGEST * len(rates.nodes))):
            speedup = predicted(kind, rates, length, levels=False)
            yield _advice(other, {**cfg, name: length}, name, speedup, kind)


def _lengths(
    method: Method, name: str, kind: Kind, rates: RunRates, used: Mapping[str, Any]
) -> Iterable[int]:
    setting = next(s for s in method.settings() if s.name == name)
    chain = rates.draft and all(nodes <= 1 for nodes in rates.nodes)
    most = len(rates.nodes) if not chain else LONGEST * max(used[name], len(rates.nodes))
    least = int(setting.low or 1)
    place = method.layout(method.configure(used)).arrangement
    if kind == "servers" and rates.draft and isinstance(place, Separate):
        least = max(least, ceil(rates.forward(1) / rates.draft / place.targets - 1e-9))
    return range(least, 1 + int(min(most, setting.high or most)))


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
    roles = [device.role for device in trace.header.devices]
    return "drafter" in roles and "target" in roles


def _share_a_card(trace: Trace) -> bool:
    """Return whether devices are streams of one GPU: `cuda:0/drafter` and `cuda:0/target`."""
    cards = [device.name.partition("/")[0] for device in trace.header.devices]
    return len({*cards}) < len(cards)
