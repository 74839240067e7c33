"""The map: which method is the fastest at a drafter's speed, an acceptance rate, and devices.

Every number is a run of the method's own code on a virtual cluster whose forwards take the same
time for any number of rows; the closed form is beside it. A method has its best draft length by its
closed form, and the devices that it uses. `assets/examples/map.toml` has methods and places.
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
from specscope.traces.closed_forms import (
    best_gamma,
    dsi_blocks_speedup,
    layer_parallel_speedup,
    pearl_speedup,
    specbranch_speedup,
    speculative_speedup,
    ssd_speedup,
)
from specscope.traces.lab.sweep import Job, Scripted
from specscope.traces.metrics import measure, speedup

if TYPE_CHECKING:
    from specscope.engine.simulate.latency import Latency
    from specscope.engine.trace.trace import Trace

FILE = Path(__file__).resolve().parents[2] / "assets" / "examples" / "map.toml"


LEAST = 48
"""Tokens of a recorded run: the first and last drafts of a shorter one weigh too much."""


class Entrant(NamedTuple):
    """A method of the map."""

    key: str
    short: str
    form: str
    """Name of its closed form in `FORMS`."""
    devices: int = 0
    """Devices that it uses; 0 for as many as there are."""
    lengths: tuple[str, ...] = ()
    """Settings that get the draft length which is best by the closed form."""
    longest: int = 24
    share: str = ""
    """Setting that gets the number of devices, less `spare`, at most `most`."""
    spare: int = 0
    most: int = 0
    rate: str = ""
    """Setting that gets the acceptance rate."""

    @property
    def title(self) -> str:
        return find(self.key).title


@dataclass(frozen=True, slots=True)
class Plan:
    """What the map covers."""

    profile: str
    ratios: tuple[int, ...]
    rates: tuple[float, ...]
    devices: tuple[int, ...]
    doubt: float
    tokens: int
    seeds: int
    methods: tuple[Entrant, ...]

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
        for count in self.devices:
            check_range("devices", count, 2, gpus)
        check_range("doubt", self.doubt, 0, 1)
        Scripted(self.profile, f"c{self.ratios[0]}", self.tokens).check(self.seeds)

    @property
    def races(self) -> list[tuple[Entrant, int]]:
        """The methods of a place, each once for each number of devices that it can use."""
        used = {(e, e.devices or min(n, e.most or n)): None for e in self.methods for n in self.devices}
        return [(entrant, count) for entrant, count in used if count <= max(self.devices)]

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
    speedup: float
    """Over plain decoding, the mean of the seeds."""
    form: float
    """By the closed form."""
    traces: tuple[Trace, ...] = ()
    """The first seed's run."""

    def facts(self) -> dict[str, Any]:
        numbers = {"speedup": round(self.speedup, 4), "form": round(self.form, 4)}
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
    place is that of its runs. No setting follows it: the doubts are the recorded drafter's own.
    """
    plan.check()
    races = [(c, rate, _scripted(plan, c, rate)) for c, rate in plan.places]
    if recorded:
        plan = replace(plan, methods=tuple(entrant._replace(rate="") for entrant in plan.methods))
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
    run = Scripted(plan.profile, f"c{c}", plan.tokens, doubt=plan.doubt)
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
    for entrant, devices in plan.races:
        yield _result(plan, entrant, c, rate, devices, race)


def _result(plan: Plan, entrant: Entrant, c: int, rate: float, devices: int, race: Race) -> Result:
    latency, form = _latency(plan.profile, c), FORMS[entrant.form]

    def speed(rate: float, length: int, c: float) -> float:
        return form(rate, length, c, latency, devices)

    length = best_gamma(speed, rate, c, entrant.longest)
    config: dict[str, Any] = dict.fromkeys(entrant.lengths, length)
    if entrant.share:
        config[entrant.share] = devices - entrant.spare
    if entrant.rate:
        config[entrant.rate] = rate
    runs = race(entrant.key, config)
    speeds = [speedup(measure(mine), measure(plain)) for mine, plain in runs]
    known = [one for one in speeds if one is not None]
    mean = fmean(known) if known else 0.0
    return Result(entrant.key, c, rate, devices, config, mean, speed(rate, length, c), runs[0])


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


def winner(results: Sequence[Result], c: int, rate: float, devices: int, by: str = "runs") -> Winner:
    """Return the fastest method at a place on at most `devices` devices, by one of `VALUES`."""
    value = VALUES[by]
    mine = [one for one in results if (one.c, one.rate) == (c, rate) and one.devices <= devices]
    best, *others = sorted(mine, key=value, reverse=True)
    second = next((one for one in others if one.key != best.key), None)
    lead = value(best) / value(second) - 1 if second and value(second) else 0.0
    return Winner(best, second, value(best), lead)


# Closed forms: (rate, draft length, c, times, devices) -> speed-up.


Form = Callable[[float, int, float, "Latency", int], float]


def _turns(rate: float, gamma: int, c: float, latency: Latency, devices: int) -> float:  # noqa: ARG001
    return speculative_speedup(rate, gamma, c)


def _overlapped(rate: float, gamma: int, c: float, latency: Latency, devices: int) -> float:  # noqa: ARG001
    return pearl_speedup(rate, gamma, c)


def _cache(rate: float, gamma: int, c: float, latency: Latency, devices: int) -> float:  # noqa: ARG001
    return ssd_speedup(rate, gamma, c)


def _branches(rate: float, gamma: int, c: float, latency: Latency, devices: int) -> float:  # noqa: ARG001
    return specbranch_speedup(rate, gamma, c)


def _servers(rate: float, lookahead: int, c: float, latency: Latency, devices: int) -> float:  # noqa: ARG001
    keeps_up = c <= lookahead * (devices - 1) + 1e-9 and lookahead <= c
    return dsi_blocks_speedup(rate, lookahead, c) if keeps_up else 0.0


def _layers(rate: float, gamma: int, c: float, latency: Latency, devices: int) -> float:  # noqa: ARG001
    plain, size = latency("target", 1, 0), 4
    later = latency.parallel("drafter", 1, 0, size, devices=devices) / plain
    return layer_parallel_speedup(rate, gamma, latency("drafter", 1, 0) / plain, later)


FORMS: dict[str, Form] = {
    "turns": _turns,
    "overlapped": _overlapped,
    "cache": _cache,
    "branches": _branches,
    "servers": _servers,
    "layers": _layers,
}


@cache
def _latency(profile: str, c: int) -> Latency:
    return Profile.load(profile).latency(f"c{c}")


def given_back(facts: Mapping[str, Any]) -> tuple[Plan, list[Result]]:
    """Return plan and results of a map's JSON."""
    return _plan(facts["plan"]), [Result(**row) for row in facts["results"]]


def _plan(given: Mapping[str, Any]) -> Plan:
    plan, methods = dict[str, Any](given), list[Entrant]()
    for name in ("ratios", "rates", "devices"):
        plan[name] = tuple(given[name])
    for row in given["methods"]:
        entrant: dict[str, Any] = {**row, "lengths": tuple(row.get("lengths", ()))}
        methods.append(Entrant(**entrant))
    plan["methods"] = tuple(methods)
    return Plan(**plan)


def facts(plan: Plan, found: Sequence[Result]) -> dict[str, Any]:
    """Return plan and results as JSON's values."""
    methods = [entrant._asdict() for entrant in plan.methods]
    places = {**asdict(replace(plan, methods=())), "methods": methods}
    return {"plan": places, "results": [one.facts() for one in found]}
