"""A race: speed-ups with the range that their passes leave open, and which run is the fastest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple, TypedDict, TypeVar

from specscope.traces.facts.comparable import comparisons, lacks_load, other_load
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.settings import config_text, shown_config
from specscope.traces.judge.causes import impossible

if TYPE_CHECKING:
    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics

T = TypeVar("T")
ONE_PASS = 0.06
"""How far a single measured pass may be from the next ones, as a share of its speed.

Source: passes of plain decoding on two quiet cores, docs/methods/metrics.md.
"""

IN_TURNS = 3
"""Passes of each run, one after the other, whose ranges decide a race of unknown load."""


class Speed(NamedTuple):
    """Tokens/s of the passes of a run, or the ratio of two such speeds."""

    value: float
    low: float
    high: float
    passes: int
    """Of a ratio, those of the run with fewer."""

    def over(self, other: Speed) -> Speed:
        """Return the speed-up over another speed; its range is the widest of both."""
        ends = self.low / other.high, self.high / other.low
        return Speed(self.value / other.value, *ends, min(self.passes, other.passes))

    @property
    def text(self) -> str:
        """The speed-up with its range and where that is from; virtual times have no range."""
        if self.low == self.high:
            return f"{self.value:.2f}×"
        source = f"by {self.passes} passes" if self.passes > 1 else f"one pass, each speed ± {ONE_PASS:.0%}"
        return f"{self.value:.2f}× ({self.low:.2f} to {self.high:.2f}, {source.replace('%', ' %')})"


class Racer(NamedTuple):
    """A run of a race."""

    trace: Trace
    speed: Speed | None
    baseline: int | None
    """Index of its baseline among the racers, see `comparable`; a baseline has its own."""
    reason: str
    loaded: bool
    """Whether other programs used the machine during one of its passes."""
    unknown: bool = False
    """Whether that is not recorded, and no passes in turns show what it changes."""
    doubt: str = ""
    """Why its times cannot be compared with its baseline's, see `causes`; else empty."""


def racers_of(
    traces: Sequence[Trace], measured: Sequence[Metrics], passes: Sequence[Sequence[Trace]] = ()
) -> list[Racer]:
    groups = passes or [[trace] for trace in traces]
    compared, alone = comparisons([[trace] for trace in traces]), not _in_turns(groups)
    racers = [
        Racer(
            trace,
            speed_of(group, metrics),
            baseline,
            reason,
            any(load.warning for load in map(other_load, group) if load),
            alone and any(map(lacks_load, group)),
        )
        for trace, metrics, group, (baseline, reason) in zip(traces, measured, groups, compared, strict=True)
    ]
    return [
        racer if k in (None, i) else racer._replace(doubt=impossible(racer.trace, traces[k]))
        for i, (racer, k) in enumerate((racer, racer.baseline) for racer in racers)
    ]


def speed_of(passes: Sequence[Trace], first: Metrics) -> Speed | None:
    """Return the speed of a run; None if no pass is done. `first` has the first pass's metrics.

    The value is the mean of two passes, and the median of more: that of the first pass (see
    `median_first`). The range holds all passes, of a single measured one `ONE_PASS`.
    """
    found = [first.tokens_per_second or 0.0] if passes[0].status == "done" else []
    found = [speed for speed in (*found, *speeds(passes[1:])) if speed]
    if not found:
        return None
    value = fmean(found) if len(found) == 2 else found[0]
    if len(found) == 1 and not passes[0].header.virtual:
        return Speed(value, value * (1 - ONE_PASS), value * (1 + ONE_PASS), 1)
    return Speed(value, min(found), max(found), len(found))


def speedup_of(racer: Racer, racers: Sequence[Racer]) -> Speed | None:
    """Return the speed-up over the baseline; None without one, or without a speed of both."""
    plain = None if racer.baseline is None else racers[racer.baseline].speed
    return racer.speed.over(plain) if racer.speed and plain else None


def race_line(racers: Sequence[Racer]) -> str:
    """Return which run is the fastest, and by how much; empty unless several have one baseline."""
    fields = _fields(racers)
    if len(fields) != 1 or len(fields[0]) < 2:
        return ""
    (field,) = fields
    if any(racer.loaded for racer in field):
        return (
            "No winner: other programs used this machine during the race. Run it again when they have ended."
        )
    if doubted := [racer.trace.header.title for racer in field if racer.doubt]:
        return (
            f"No winner: the target forwards of {', '.join(doubted)} were faster than plain ones, which is no "
            "effect of a method."
        )
    if any(racer.unknown for racer in field):
        return (
            "No winner: the load by other programs was not recorded. The range of "
            f"{IN_TURNS} passes of each in turns (Passes, --repeat) shows what it changes."
        )
    near = _near(field)
    if len(near) > 1:
        return f"No clear winner: {', '.join(_entry(racer, racers) for racer in near)}."
    return f"Fastest: {_entry(field[0], racers)}. Next: {_entry(field[1], racers)}."


def winners(racers: Sequence[Racer]) -> set[int]:
    """Return the indices of the runs that are clearly faster than all others with their baseline.

    A view sets their speed-up bold. Plain decoding, if it is the fastest, has no speed-up to show.
    """
    alone = [field[0] for field in _fields(racers) if len(_near(field)) == 1 < len(field)]
    return {i for i, r in enumerate(racers) if r.baseline != i and any(r is racer for racer in alone)}


def _fields(racers: Sequence[Racer]) -> list[list[Racer]]:
    """Return the runs with a speed-up, those with one baseline together, the fastest first."""
    fields = dict[int | None, list[Racer]]()
    for racer in sorted(racers, key=lambda r: -(r.speed.value if r.speed else 0)):
        if speedup_of(racer, racers):
            fields.setdefault(racer.baseline, []).append(racer)
    return [*fields.values()]


def _near(field: Sequence[Racer]) -> Sequence[Racer]:
    """Return the runs whose range reaches the fastest's; all if the times of one are doubtful."""
    if any(racer.loaded or racer.unknown or racer.doubt for racer in field):
        return field
    least = field[0].speed.low if field[0].speed else 0.0
    return [racer for racer in field if racer is field[0] or (racer.speed and racer.speed.high >= least)]


def _in_turns(groups: Sequence[Sequence[Trace]]) -> bool:
    """Return whether all runs have enough passes, of which the n-th ones followed each other."""
    order = sorted((trace.header.created, i) for i, group in enumerate(groups) for trace in group)
    rounds = [{i for _, i in order[k : k + len(groups)]} for k in range(0, len(order), len(groups) or 1)]
    whole = all(trace.status == "done" for group in groups for trace in group)
    return whole and len(rounds) >= IN_TURNS and all(len(found) == len(groups) for found in rounds)


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

    Of two passes there is no median: their speed is the mean (`speed_of`),
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
    """Return the passes of each method, by title, settings and prompts, the oldest method first."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        facts = (header.method, header.title, header.config, header.prompts, header.prompt_ids)
        key = json.dumps([*facts, header.sampling], sort_keys=True)
        groups.setdefault(key, []).append(header)
    return list(groups.values())


def _speed(trace: Trace) -> float:
    return (measure(trace).tokens_per_second or 0.0) if trace.status == "done" else 0.0
