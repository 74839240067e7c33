"""The map: which method is the fastest at a drafter's speed, an acceptance rate, and devices.

Every number is a run of the method's own code on a virtual cluster whose forwards take the same
time for any number of rows; the closed form is beside it. A method has the settings that are best
by its closed form, and the devices that it uses.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.errors import UsageError
from specscope.engine.methods import BASELINE, find
from specscope.traces.facts.metrics import measure, speedup
from specscope.traces.lab.forms import FORMS, MapPlace, best_settings
from specscope.traces.lab.plan import Entrant, MapPlan, assumptions, plan_of
from specscope.traces.lab.sweep import SweepRun

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

LEAST = 48
"""Tokens of a recorded run: the first and last drafts of a shorter one weigh too much."""
EQUAL = 0.03
"""A smaller lead is none: the closed forms are not more exact."""


@dataclass(frozen=True, slots=True)
class Result:
    """A method at a place, on the devices that it uses."""

    key: str
    c: int
    rate: float
    devices: int
    config: Mapping[str, Any]
    speedup: float
    """Over plain decoding, the mean of the seeds or of the recorded runs."""
    form: float
    """By the closed form."""
    speedups: tuple[float, ...] = ()
    """Each seed's or recorded run's; empty in a stored map that has the mean only."""
    traces: tuple[Trace, ...] = ()
    """The first seed's run."""

    def facts(self) -> dict[str, Any]:
        numbers = {"speedup": round(self.speedup, 4), "form": round(self.form, 4)}
        numbers |= {"speedups": [round(one, 4) for one in self.speedups]}
        place = {"key": self.key, "c": self.c, "rate": self.rate, "devices": self.devices}
        return place | numbers | {"config": dict(self.config)}


def draw(
    plan: MapPlan, recorded: Sequence[Trace] = (), cancel: threading.Event | None = None
) -> Iterator[list[Result]]:
    """Yield the results of each place of the map, for all numbers of devices; `cancel` ends it.

    With recorded runs, their drafts are replayed and the plan's rates are not used: the rate of a
    place is that of its runs. Doubts and second choices are the recorded drafter's own.
    """
    plan.check()
    races = [(c, rate, _scripted(plan, c, rate)) for c, rate in plan.places]
    if recorded:
        plan = replace(plan, methods=tuple(map(unrated, plan.methods)))
        alike: dict[float, list[Trace]] = {}
        for trace in recorded:
            alike.setdefault(rate_of(trace), []).append(trace)
        races = [(c, rate, _replayed(plan, c, runs)) for rate, runs in alike.items() for c in plan.ratios]
    for c, rate, race in races:
        if cancel is not None and cancel.is_set():
            return
        yield [*results(plan, c, rate, race)]


def unrated(entrant: Entrant) -> Entrant:
    """Leave what follows the rate at its default: a recorded drafter has doubts of its own."""
    usual = {s.name: s.default for s in find(entrant.key).settings()}
    rated = {name: usual[name] for name, most in entrant.search.items() if most == "rate"}
    search = {name: most for name, most in entrant.search.items() if name not in rated}
    return entrant._replace(given={**entrant.given, **rated}, search=search)


Race = Callable[[str, "Mapping[str, Any]"], "list[tuple[Trace, Trace]]"]
"""(method, settings) -> its runs and plain decoding's, by seed."""


def _scripted(plan: MapPlan, c: int, rate: float) -> Race:
    run = plan.script(c)
    groups = [uuid.uuid4().hex[:12] for _ in range(plan.seeds)]

    @cache
    def plain(seed: int) -> Trace:
        return run(SweepRun(BASELINE, {}, seed, rate, groups[seed]))

    def race(key: str, config: Mapping[str, Any]) -> list[tuple[Trace, Trace]]:
        rates = plan.rate(key, rate)
        jobs = [SweepRun(key, dict(config), seed, rates, group) for seed, group in enumerate(groups)]
        return [(run(job), plain(job.sample)) for job in jobs]

    return race


def _replayed(plan: MapPlan, c: int, recorded: Sequence[Trace]) -> Race:
    from specscope.traces.whatif.replay import Change, what_if

    def race(key: str, config: Mapping[str, Any]) -> list[tuple[Trace, Trace]]:
        change = Change(plan.profile, f"c{c}", method=key, config=config)
        found = [what_if(trace, change) for trace in recorded]
        return [(one.replay, one.plain) for one in found if one.plain is not None]

    return race


def rate_of(trace: Trace) -> float:
    """Return the share of a run's tested drafts that were accepted; UsageError for a short run."""
    outcomes = [d.outcome for d in trace.decisions if d.node >= 0]
    tested = outcomes.count("accepted") + outcomes.count("rejected")
    if len(trace.commits) < LEAST:
        raise UsageError(
            f"run {trace.header.run_id} has {len(trace.commits)} tokens; record at least {LEAST}, or its end decides"
        )
    if not outcomes.count("accepted"):
        raise UsageError(f"run {trace.header.run_id} accepted no draft; record a method with a drafter")
    return round(min(outcomes.count("accepted") / tested, 0.99), 2)


def results(plan: MapPlan, c: int, rate: float, race: Race | None = None) -> Iterator[Result]:
    """Yield the results of a place as they are done."""
    race = race or _scripted(plan, c, rate)
    for entrant, shares in plan.races:
        yield _result(plan, entrant, c, rate, shares, race)


def _result(plan: MapPlan, entrant: Entrant, c: int, rate: float, shares: int, race: Race) -> Result:
    rates = plan.rate(entrant.key, rate)
    at, form = MapPlace(plan.profile, c, rates, plan.doubt, plan.misses), FORMS[entrant.form]
    config = best_settings(form, at, entrant.settings(shares), entrant.search)
    runs = race(entrant.key, config)
    found = [speedup(measure(mine), measure(plain)) for mine, plain in runs]
    known = tuple(one for one in found if one is not None)
    devices = entrant.devices(shares, plan.target_devices)
    mean = fmean(known) if known else 0.0
    return Result(entrant.key, c, rate, devices, config, mean, form(at, **config), known, runs[0])


def with_target(plan: MapPlan, found: Sequence[Result], devices: int) -> tuple[MapPlan, list[Result]]:
    """Return the map of a target on so many devices, from that of one on a single device.

    The methods have as many targets as before, so there are as many times more devices.
    """
    entrants = {entrant.key: entrant for entrant in plan.methods}
    counts = tuple(count * devices for count in plan.devices)
    moved = [
        replace(one, devices=entrant.devices(one.config.get(entrant.share, 1), devices))
        for one in found
        for entrant in (entrants[one.key],)
    ]
    return replace(plan, target_devices=devices, devices=counts), moved


VALUES: dict[str, Callable[[Result], float]] = {
    "runs": lambda one: one.speedup,
    "closed forms": lambda one: one.form,
    "per device": lambda one: one.speedup / one.devices,
}
"""What a map can compare."""


class Winner(NamedTuple):
    """The fastest method of a cell."""

    best: Result
    second: Result | None
    """The fastest of the other methods."""
    value: float
    lead: float
    """The share by which the best is faster than the second."""
    leads: tuple[float, ...] = ()
    """The same by seed, where both have them; empty for closed forms."""

    @property
    def clear(self) -> bool:
        """Whether the lead is no chance: not small, and there for every seed."""
        return self.lead >= EQUAL and all(lead > 0 for lead in self.leads)


def winner(results: Sequence[Result], c: int, rate: float, devices: int, by: str = "runs") -> Winner | None:
    """Return the fastest method at a place on at most `devices` devices, by one of `VALUES`.

    None if none has room.
    """
    value = VALUES[by]
    mine = [one for one in results if (one.c, one.rate) == (c, rate) and one.devices <= devices]
    if not mine:
        return None
    best, *others = sorted(mine, key=value, reverse=True)
    second = next((one for one in others if one.key != best.key), None)
    if second is None or not value(second):
        return Winner(best, second, value(best), 0.0)
    lead, leads = value(best) / value(second) - 1, tuple[float, ...]()
    if by != "closed forms" and len(best.speedups) == len(second.speedups):
        scale = (1 + lead) * second.speedup / best.speedup  # 1, or how many times as many the second uses
        leads = tuple(scale * a / b - 1 for a, b in zip(best.speedups, second.speedups, strict=True))
    return Winner(best, second, value(best), lead, leads)


def given_back(facts: Mapping[str, Any]) -> tuple[MapPlan, list[Result]]:
    """Return plan and results of a map's JSON."""
    rows: list[dict[str, Any]] = [{**row, "speedups": tuple(row["speedups"])} for row in facts["results"]]
    return plan_of(facts["plan"]), [Result(**row) for row in rows]


def facts(plan: MapPlan, found: Sequence[Result]) -> dict[str, Any]:
    """Return plan and results as JSON's values."""
    methods = [entrant._asdict() for entrant in plan.methods]
    places = {**asdict(replace(plan, methods=())), "methods": methods}
    return {"plan": places, "assumptions": assumptions(plan), "results": [one.facts() for one in found]}
