"""The map: which method is the fastest at a drafter's speed, an acceptance rate, and devices.

Every number is a run of the method's own code on a virtual cluster whose forwards take the same
time for any number of rows; the closed form is beside it. A method has the settings that are best
by its closed form, and the devices that it uses. `assets/examples/map.toml` has methods and places.

A target may take several devices. c is that of the target as it lies on them, so no time changes,
only the devices that are counted.
"""

from __future__ import annotations

import threading
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.errors import UsageError
from specscope.engine.methods import BASELINE, find
from specscope.engine.simulate.profile import Profile
from specscope.engine.types import check_range
from specscope.traces.lab.forms import FORMS, Place, best_settings
from specscope.traces.lab.sweep import Job, Scripted
from specscope.traces.metrics import measure, speedup

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

FILE = Path(__file__).resolve().parents[2] / "assets" / "examples" / "map.toml"
LEAST = 48
"""Tokens of a recorded run: the first and last drafts of a shorter one weigh too much."""
EQUAL = 0.03
"""A smaller lead is none: the closed forms are not more exact."""


class Entrant(NamedTuple):
    """A method of the map."""

    key: str
    short: str
    form: str
    """Name of its closed form in `FORMS`."""
    drafters: int = 0
    """Devices of the drafter beside the target's; 0: it shares the target's."""
    given: Mapping[str, Any] = {}
    """Settings that are the same everywhere."""
    search: Mapping[str, int | str] = {}
    """Settings that are best by the closed form, see `best_settings`."""
    share: str = ""
    """Setting that gets what more devices are used for: targets, or devices of a drafter that
    shares the target's."""
    most: int = 0
    """Most of them; 0 for any number."""

    @property
    def title(self) -> str:
        return find(self.key).title

    def shares(self, devices: int, target: int) -> int:
        """Return the value of `share` on so many devices, `target` for a target; 0: no room."""
        room = (devices - self.drafters) // target
        if not self.share:
            return min(room, 1)
        return min(room if self.drafters else devices * (room > 0), self.most or devices)

    def devices(self, shares: int, target: int) -> int:
        """Return the devices that it uses."""
        if self.share and not self.drafters:
            return max(shares, target)
        return shares * target + self.drafters


@dataclass(frozen=True, slots=True)
class Plan:
    """What the map covers."""

    profile: str
    ratios: tuple[int, ...]
    rates: tuple[float, ...]
    devices: tuple[int, ...]
    target_devices: int
    doubt: float
    misses: float
    tokens: int
    seeds: int
    methods: tuple[Entrant, ...]
    recorded: tuple[str, ...] = ()
    """Runs whose drafts are replayed in place of drafts at a rate."""

    def check(self) -> None:
        for name, values in (("ratios", self.ratios), ("rates", self.rates), ("devices", self.devices)):
            check_range(f"the number of {name}", len(values), 1, 20)
        pairs, gpus = Profile.load(self.profile).pairs, len(Profile.load(self.profile).gpus)
        for ratio in self.ratios:
            if f"c{ratio}" not in pairs:
                known = ", ".join(name.removeprefix("c") for name in pairs)
                raise UsageError(f"c is {ratio}; the profile {self.profile} has drafters for c = {known}")
        for rate in self.rates:
            check_range("acceptance rate", rate, 0.01, 0.99)
        check_range("the target's devices", self.target_devices, 1, gpus)
        for count in self.devices:
            check_range("devices", count, max(2, self.target_devices), gpus * self.target_devices)
        check_range("doubt", self.doubt, 0, 1)
        check_range("misses", self.misses, 0.01, 10)
        self.script(self.ratios[0]).check(self.seeds)

    def script(self, c: int) -> Scripted:
        return Scripted(self.profile, f"c{c}", self.tokens, doubt=self.doubt, misses=self.misses)

    @property
    def races(self) -> list[tuple[Entrant, int]]:
        """The methods of a place, each once for each value of its `share` that has room."""
        counts = ({e.shares(n, self.target_devices): None for n in self.devices} for e in self.methods)
        return [(e, n) for e, shares in zip(self.methods, counts, strict=True) for n in shares if n]

    @property
    def places(self) -> list[tuple[int, float]]:
        return [(ratio, rate) for ratio in self.ratios for rate in self.rates]


@dataclass(frozen=True, slots=True)
class Result:
    """A method at a place, on the devices that it uses."""

    key: str
    c: int
    rate: float
    devices: int
    config: Mapping[str, Any]
    speedups: tuple[float, ...]
    """Over plain decoding, by seed or by recorded run."""
    form: float
    """By the closed form."""
    traces: tuple[Trace, ...] = ()
    """The first seed's run."""

    @property
    def speedup(self) -> float:
        return fmean(self.speedups) if self.speedups else 0.0

    def facts(self) -> dict[str, Any]:
        numbers = {"speedup": round(self.speedup, 4), "form": round(self.form, 4)}
        numbers |= {"speedups": [round(one, 4) for one in self.speedups]}
        place = {"key": self.key, "c": self.c, "rate": self.rate, "devices": self.devices}
        return place | numbers | {"config": dict(self.config)}


def default() -> Plan:
    given = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return _plan(given)


def draw(
    plan: Plan, recorded: Sequence[Trace] = (), cancel: threading.Event | None = None
) -> Iterator[list[Result]]:
    """Yield the results of each place of the map, for all numbers of devices; `cancel` ends it.

    With recorded runs, their drafts are replayed and the plan's rates are not used: the rate of a
    place is that of its runs. Doubts and second choices are the recorded drafter's own.
    """
    plan.check()
    races = [(c, rate, _scripted(plan, c, rate)) for c, rate in plan.places]
    if recorded:
        alike: dict[float, list[Trace]] = {}
        for trace in recorded:
            alike.setdefault(rate_of(trace), []).append(trace)
        races = [(c, rate, _replayed(plan, c, runs)) for rate, runs in alike.items() for c in plan.ratios]
    for c, rate, race in races:
        if cancel is not None and cancel.is_set():
            return
        yield [*results(plan, c, rate, race)]


Race = Callable[[str, "Mapping[str, Any]"], "list[tuple[Trace, Trace]]"]
"""(method, settings) -> its runs and plain decoding's, by seed."""


def _scripted(plan: Plan, c: int, rate: float) -> Race:
    run = plan.script(c)
    groups = [uuid.uuid4().hex[:12] for _ in range(plan.seeds)]

    @cache
    def plain(seed: int) -> Trace:
        return run(Job(BASELINE, {}, seed, rate, groups[seed]))

    def race(key: str, config: Mapping[str, Any]) -> list[tuple[Trace, Trace]]:
        jobs = [Job(key, dict(config), seed, rate, group) for seed, group in enumerate(groups)]
        return [(run(job), plain(job.sample)) for job in jobs]

    return race


def _replayed(plan: Plan, c: int, recorded: Sequence[Trace]) -> Race:
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


def results(plan: Plan, c: int, rate: float, race: Race | None = None) -> Iterator[Result]:
    """Yield the results of a place as they are done."""
    race = race or _scripted(plan, c, rate)
    for entrant, shares in plan.races:
        yield _result(plan, entrant, c, rate, shares, race)


def _result(plan: Plan, entrant: Entrant, c: int, rate: float, shares: int, race: Race) -> Result:
    at, form = Place(plan.profile, c, rate, plan.doubt, plan.misses), FORMS[entrant.form]
    given = {**entrant.given, **({entrant.share: shares} if entrant.share else {})}
    config = best_settings(form, at, given, entrant.search)
    runs = race(entrant.key, config)
    found = [speedup(measure(mine), measure(plain)) for mine, plain in runs]
    known = tuple(one for one in found if one is not None)
    devices = entrant.devices(shares, plan.target_devices)
    return Result(entrant.key, c, rate, devices, config, known, form(at, **config), runs[0])


def with_target(plan: Plan, found: Sequence[Result], devices: int) -> tuple[Plan, list[Result]]:
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
    """The same by seed; empty for closed forms."""

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
    ratio = value(best) / value(second)
    runs = zip(best.speedups, second.speedups, strict=True) if by != "closed forms" else ()
    scale = ratio * second.speedup / best.speedup if runs else 1.0
    leads = tuple(scale * mine / theirs - 1 for mine, theirs in runs)
    return Winner(best, second, value(best), ratio - 1, leads)


def given_back(facts: Mapping[str, Any]) -> tuple[Plan, list[Result]]:
    """Return plan and results of a map's JSON."""
    rows = [{name: value for name, value in row.items() if name != "speedup"} for row in facts["results"]]
    return _plan(facts["plan"]), [Result(**{**row, "speedups": tuple(row["speedups"])}) for row in rows]


def _plan(given: Mapping[str, Any]) -> Plan:
    plan = dict[str, Any](given)
    for name in ("ratios", "rates", "devices", "recorded"):
        plan[name] = tuple(given.get(name, ()))
    plan["methods"] = tuple(Entrant(**row) for row in given["methods"])
    return Plan(**plan)


def facts(plan: Plan, found: Sequence[Result]) -> dict[str, Any]:
    """Return plan and results as JSON's values."""
    methods = [entrant._asdict() for entrant in plan.methods]
    places = {**asdict(replace(plan, methods=())), "methods": methods}
    return {"plan": places, "assumptions": assumptions(plan), "results": [one.facts() for one in found]}


def assumptions(plan: Plan) -> list[str]:
    """Return what the numbers of a map assume, a sentence each."""
    target = "one device" if plan.target_devices == 1 else f"{plan.target_devices} devices"
    if plan.recorded:
        drafts = "Drafts, doubts and second choices are those of the recorded runs."
    else:
        drafts = (
            f"Each position is accepted independently, at one rate a, in {plan.seeds} runs of {plan.tokens} tokens. "
            f"Where the drafter is wrong, the target's token is not among its next F choices in (1 + F)^-{plan.misses:g} "
            f"of the cases. The drafter doubts at 1 - {1 - plan.doubt:g} a of its errors."
        )
    given = [f"{find(e.key).title} has {k} {v}" for e in plan.methods for k, v in e.given.items()]
    return [
        "Virtual time: a forward takes the same time for any number of rows; judging and sending cost nothing.",
        *drafts.replace(". ", ".\n").split("\n"),
        f"The target takes {target}; c is that of the target as it lies there. EasySpec's fuzzy drafts are as good as "
        "exact ones.",
        "; ".join([*given, "other settings are the best by the closed form, at the rate and c of the place"])
        + ".",
    ]
