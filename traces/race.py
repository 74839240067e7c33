"""A race: speed-ups with the range that their passes leave open, and which run is the fastest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypedDict, TypeVar

from specscope.traces.comparable import comparisons, lacks_load, other_load
from specscope.traces.metrics import measure
from specscope.traces.view.settings import config_text, shown_config

if TYPE_CHECKING:
    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.metrics import Metrics

T = TypeVar("T")
ONE_PASS = 0.06
"""How far a single measured pass may be from the next ones, as a share of its speed.

Source: passes of plain decoding on two quiet cores, docs/methods/metrics.md.
"""


class Speed(NamedTuple):
    """Tokens/s of the passes of a run, or the ratio of two such speeds."""

    value: float
    low: float
    high: float

    def over(self, other: Speed) -> Speed:
        """Return the speed-up over another speed; its range is the widest of both."""
        return Speed(self.value / other.value, self.low / other.high, self.high / other.low)

    @property
    def text(self) -> str:
        """The speed-up with its range: `1.83× (1.79 to 1.98)`; virtual times have no range."""
        ranged = f"{self.low:.2f} to {self.high:.2f}"
        return f"{self.value:.2f}×" + ("" if self.low == self.high else f" ({ranged})")


class Racer(NamedTuple):
    """A run of a race."""

    trace: Trace
    speed: Speed | None
    baseline: int | None
    """Index of its baseline among the racers, see `traces.comparable`; a baseline has its own."""
    reason: str
    loaded: bool
    """Whether other programs used the machine during one of its passes."""
    unknown: bool = False
    """Whether that is not recorded."""


def racers_of(
    traces: Sequence[Trace], measured: Sequence[Metrics], passes: Sequence[Sequence[Trace]] = ()
) -> list[Racer]:
    groups = passes or [[trace] for trace in traces]
    compared = comparisons([[trace] for trace in traces])
    return [
        Racer(trace, speed_of(group, metrics), baseline, reason, _loaded(group), any(map(lacks_load, group)))
        for trace, metrics, group, (baseline, reason) in zip(traces, measured, groups, compared, strict=True)
    ]


def speed_of(passes: Sequence[Trace], first: Metrics) -> Speed | None:
    """Return the speed of a run; None if no pass is done. `first` has the first pass's metrics.

    The value is the mean of two passes, and the median of more: that of the first pass (see
    `specscope.traces.race.median_first`). The range holds all passes, of a single measured one
    `ONE_PASS`.
    """
    found = [first.tokens_per_second or 0.0] if passes[0].status == "done" else []
    found = [speed for speed in (*found, *speeds(passes[1:])) if speed]
    if not found:
        return None
    value = fmean(found) if len(found) == 2 else found[0]
    if len(found) == 1 and not passes[0].header.virtual:
        return Speed(value, value * (1 - ONE_PASS), value * (1 + ONE_PASS))
    return Speed(value, min(found), max(found))


def speedup_of(racer: Racer, racers: Sequence[Racer]) -> Speed | None:
    """Return the speed-up over the baseline; None without one, or without a speed of both."""
    plain = None if racer.baseline is None else racers[racer.baseline].speed
    return racer.speed.over(plain) if racer.speed and plain else None


def race_line(racers: Sequence[Racer]) -> str:
    """Return which run is the fastest, and by how much; empty unless several have one baseline."""
    field = [(racer, racer.speed) for racer in racers if racer.speed and speedup_of(racer, racers)]
    field.sort(key=lambda entry: -entry[1].value)
    if len(field) < 2 or len({racer.baseline for racer, _ in field}) > 1:
        return ""
    if any(racer.loaded for racer, _ in field):
        return (
            "No winner: other programs used this machine during the race. Run it again when they have ended."
        )
    if any(racer.unknown for racer, _ in field):
        return "No winner: the load by other programs was not recorded."
    (first, fastest), (second, _), *_ = field
    near = [racer for racer, speed in field if racer is first or speed.high >= fastest.low]
    if len(near) > 1:
        return f"No clear winner: {', '.join(_entry(racer, racers) for racer in near)}."
    return f"Fastest: {_entry(first, racers)}. Next: {_entry(second, racers)}."


def _loaded(passes: Sequence[Trace]) -> bool:
    return any((load := other_load(trace)) is not None and load.warning for trace in passes)


def _entry(racer: Racer, racers: Sequence[Racer]) -> str:
    """Return the title and the speed-up; with the settings if another run has this title."""
    header, faster = racer.trace.header, speedup_of(racer, racers)
    twice = sum(header.title == other.trace.header.title for other in racers) > 1
    settings = config_text(header.method, shown_config(header, redact_prompt=True)) if twice else ""
    name = f"{header.title} · {settings}" if settings else header.title
    is_plain = racer.baseline is not None and racers[racer.baseline] is racer
    return name if is_plain or faster is None else f"{name}, {faster.text}"


class Spread(TypedDict):
    """The speeds of the passes of a run, in tokens/s."""

    count: int
    low: float
    high: float


def alternating(items: Sequence[T], passes: int) -> list[tuple[int, T]]:
    """Return (pass, item) in the order of the runs: every other pass goes backwards.

    So a machine that becomes slower in the course of the passes does not favour the first item.
    """
    return [(n, item) for n in range(passes) for item in (items if n % 2 == 0 else items[::-1])]


def median_first(passes: Sequence[Trace]) -> list[Trace]:
    """Return the passes with the median one first: of an even number, the slower of the middle two.

    Of two passes there is no median: their speed is the mean (`specscope.traces.race.speed_of`),
    and the slower one is drawn. Passes that are not done are last.
    """
    if len(passes) < 2:
        return list(passes)  # nothing to measure
    found = {id(t): _speed(t) for t in passes}
    done = sorted((t for t in passes if found[id(t)]), key=lambda t: found[id(t)])
    others = [t for t in passes if not found[id(t)]]
    middle = done.pop((len(done) - 1) // 2) if done else None
    return ([middle] if middle else []) + done + others


def spread(passes: Sequence[Trace]) -> Spread | None:
    if len(passes) < 2:
        return None  # nothing to measure
    found = speeds(passes)
    if len(found) < 2:
        return None
    return {"count": len(found), "low": min(found), "high": max(found)}


def speeds(passes: Sequence[Trace]) -> list[float]:
    return [speed for speed in map(_speed, passes) if speed]


def grouped(headers: Sequence[Header]) -> list[list[Header]]:
    """Return the passes of each method with its settings and prompts, the oldest method first."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        key = json.dumps([header.method, header.config, header.prompt_ids, header.sampling], sort_keys=True)
        groups.setdefault(key, []).append(header)
    return list(groups.values())


def _speed(trace: Trace) -> float:
    return (measure(trace).tokens_per_second or 0.0) if trace.status == "done" else 0.0
