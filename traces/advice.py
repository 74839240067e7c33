"""Which setting would have been faster, predicted from a run's own acceptance and times.

Predicted by the model that plans drafts, too (`engine/drafting/pace.py`): a plan knows the measured
prompts, an advice the run's own acceptance and times. A prediction for the run's own method is
scaled by measured speed-up / predicted speed-up of the used setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from specscope.engine.drafting.pace import Probe, in_turns, overlapped, seconds_at, with_servers
from specscope.engine.errors import UsageError
from specscope.engine.layout import Layout, Separate
from specscope.engine.methods import METHODS
from specscope.traces import waiting
from specscope.traces.comparable import batch_size
from specscope.traces.imported import origin
from specscope.traces.metrics import measure
from specscope.traces.places import first_rate, level_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specscope.engine.methods.registry import Method
    from specscope.engine.trace.events import Header, Span
    from specscope.engine.trace.trace import Trace
    from specscope.traces.metrics import Metrics

Kind = Literal["turns", "overlap", "servers"]
"""How drafts and verifications follow each other: in turns, one of each at the same time, or one
drafter with several target servers."""
LENGTHS = ("gamma", "depth", "copy", "lookahead")
GAIN = 1.05
"""Smallest predicted gain for which another setting is advised."""
LONGEST = 2
"""Longest predicted chain of a drafter, as a multiple of the longest measured one. Longer trees and
copies are not predicted: their nodes and matches are unknown."""
SCHEDULE = ("schedule", "confidence", "off_below")
"""Settings of draft lengths that adapt; nothing is predicted for these but at their defaults."""
SOURCES: dict[Kind, str] = {
    "turns": "Leviathan et al. 2023, theorem 3.8",
    "overlap": "the two modes of PEARL, algorithm 2",
    "servers": "the turns of DSI, algorithm 1",
}
_WIDEST = 1024
"""Further rows of the widest predicted forward."""


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
    if rates is None or not rates.draft or not rates.probe.later:
        return None
    ((first, *_), *_) = rates.probe.rates
    return 1 + first - rates.forward(2) - rates.probe.outside / rates.plain


def predicted(kind: Kind, rates: Rates, length: int, levels: bool = True) -> float:
    """Return the predicted speed-up over plain decoding of drafts of `length` tokens or levels.

    With `levels` and an order of `turns`, each level has its own acceptance, not the rate of all.
    """
    share, probe = 1.0, _chain(rates)
    if kind == "turns":
        share, known = rates.drafting, rates.nodes[:length] if levels else ()
        nodes = (*known, *[known[-1] if known else 1.0] * (length - len(known)))
        pace = in_turns(rates.probe if levels else probe, nodes)
    else:
        pace = (overlapped if kind == "overlap" else with_servers)(probe, length)
    seconds = share * pace.seconds + (1 - share) * rates.plain
    return (share * pace.tokens + 1 - share) * rates.plain / seconds


def _chain(rates: Rates) -> Probe:
    return replace(rates.probe, rates=((rates.any,),))


def kind_of(layout: Layout, config: Mapping[str, Any]) -> Kind | None:
    """Return the order of drafts and verifications; None if it is unknown, or has no formula."""
    place = layout.arrangement
    if not isinstance(place, Separate):
        return None
    if place.turns or not place.drafters:
        return "turns" if layout.batch == 1 else None
    if "lookahead" in config:
        return "servers" if place.drafters == 1 else None
    chains = "gamma" in config and "branches" not in config
    return "overlap" if layout.lockstep and chains else None


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
        yield from _others(method, rates, at_once=not _share_a_card(trace))


def _others(method: Method, rates: Rates, *, at_once: bool) -> Iterable[Advice]:
    """Yield other methods that draft chains of gamma tokens with the same drafter.

    Without `at_once` they draft and verify in turns: the measured times are those of models that
    work alone, and on one card models at work at once slow each other down.
    """
    for other in METHODS.values():
        cfg = {s.name: s.default for s in other.settings()}
        layout = other.layout(other.Config())
        kind = kind_of(layout, cfg)
        simple = (
            layout.needs_drafter
            and "gamma" in cfg
            and (kind == "overlap" or set(cfg) <= {"gamma", "drafts", *SCHEDULE})
        )
        if other.key == method.key or kind is None or not simple or not (at_once or kind == "turns"):
            continue
        for gamma in range(1, 1 + max(4, LONGEST * len(rates.nodes))):
            yield _advice(
                other, {**cfg, "gamma": gamma}, "gamma", predicted(kind, rates, gamma, levels=False), kind
            )


def _lengths(method: Method, name: str, kind: Kind, rates: Rates, used: Mapping[str, Any]) -> Iterable[int]:
    setting = next(s for s in method.settings() if s.name == name)
    chain = rates.draft and all(nodes <= 1 for nodes in rates.nodes)
    most = len(rates.nodes) if not chain else LONGEST * max(used[name], len(rates.nodes))
    least = int(setting.low or 1)
    if kind == "servers" and rates.draft:
        least = max(least, ceil(rates.forward(1) / rates.draft / max(1, used.get("sp", 1)) - 1e-9))
    return range(least, 1 + int(min(most, setting.high or most)))


def _is_plain_draft(method: Method, used: Mapping[str, Any], kind: Kind) -> bool:
    """Return whether the formulas describe these settings: all others have their defaults."""
    if {"total", "heads", "window"} & set(used):  # forwards are not one per drafted level
        return False
    changed = {s.name for s in method.settings() if used.get(s.name, s.default) != s.default}
    return not changed & {*SCHEDULE} and (kind == "turns" or changed <= {*LENGTHS, "sp", "stages"})


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


@dataclass(frozen=True, slots=True)
class Rates:
    """Acceptance and times of a run."""

    probe: Probe
    """Its rates have one rank: the share of the tested drafts of a level that were accepted, where
    all levels above were. Levels that no draft reached have `any`."""
    nodes: tuple[float, ...]
    """[level]: drafted nodes, the mean over the drafts with this level."""
    any: float
    """The acceptance rate at every level of a chain, see `specscope.traces.places.first_rate`."""
    drafting: float
    """Share of the rounds that verified a draft."""
    plain: float
    """The baseline's seconds per token: a *plain token*."""

    @property
    def draft(self) -> float:
        """In plain tokens, of a level, or of a whole draft in one forward."""
        return self.probe.first[0][1] / self.plain

    def forward(self, rows: int) -> float:
        """In plain tokens."""
        return seconds_at(self.probe.verify, rows) / self.plain


def rates_of(trace: Trace, metrics: Metrics, baseline: Trace) -> Rates | None:
    """Return the rates of a run of one sequence.

    None if it verified no draft, or if every target forward had one row: what another row costs is
    then unknown.
    """
    speed = measure(baseline).tokens_per_second
    plain = 1 / speed if speed else 0.0
    judging = [r for r in trace.rounds if r.drafted]
    rate, chain = level_rate(metrics.per_level), first_rate(trace.decisions)
    if (
        origin(trace.header)
        or batch_size(trace) > 1
        or not judging
        or not plain
        or rate is None
        or chain is None
    ):
        return None
    depths, nodes = _shape(trace)
    accepted = [(min(r.accepted, depths.get(r.step, 0)), depths.get(r.step, 0)) for r in judging]
    levels: list[float] = []
    for level in range(max((depth for _, depth in accepted), default=0)):
        tested = [kept > level for kept, depth in accepted if depth > level and kept >= level]
        if not tested:
            break
        levels.append(fmean(tested))
    work = [s for s in waiting.forwards(trace) if s.outcome == "done"]
    drafts = [s for s in work if waiting.side(s) == "drafter"]
    verifies = [s for s in work if waiting.side(s) == "target"]
    drafted = sum(depth for _, depth in accepted)
    once = bool(drafts) and len(drafts) <= len(judging) < drafted
    draft = sum(s.end - s.start for s in drafts) / max(1, len(drafts)) / 1e9
    if all(s.rows < 2 for s in verifies):
        return None
    first, more = _line(verifies, baseline)
    probe = Probe(
        verify=((1, first), (1 + _WIDEST, first + _WIDEST * more)),
        first=((1, draft),),
        later=() if once else ((1, draft),),
        outside=max(0.0, plain - first),
        rates=(*((level,) for level in levels), (rate,)),
        orders=(),
        rounds=len(judging),
    )
    return Rates(probe, tuple(nodes[: len(levels)]), chain, len(judging) / len(trace.rounds), plain)


def _shape(trace: Trace) -> tuple[dict[int, int], list[float]]:
    """Return the levels of each round's draft, and the mean number of nodes of each level."""
    rounds: dict[int, list[int]] = {}
    for d in trace.decisions:
        if d.node >= 0:
            rounds.setdefault(d.step, []).append(d.position)
    counts: dict[int, list[int]] = {}
    for positions in rounds.values():
        for level, position in enumerate(range(min(positions), max(positions) + 1)):
            counts.setdefault(level, []).append(positions.count(position))
    depths = {step: max(p) - min(p) + 1 for step, p in rounds.items()}
    return depths, [fmean(counts[level]) for level in sorted(counts)]


def _line(verifies: Iterable[Span], baseline: Trace) -> tuple[float, float]:
    """Return the seconds of a one-row forward of the target, and of each further row.

    The line goes through the median one-row forward of the baseline and the run's mean forward.
    """
    plain = [s.end - s.start for s in waiting.forwards(baseline) if waiting.side(s) == "target"]
    first = float(median(plain)) if plain else 0.0
    wide = [s for s in verifies if s.rows > 1]
    rows, time = fmean(s.rows for s in wide), fmean(s.end - s.start for s in wide)
    return first / 1e9, max(0.0, (time - first) / (rows - 1)) / 1e9
