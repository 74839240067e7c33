"""The settings of the Lab and of the Load tab as runs that can begin. Without Gradio."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from specscope.app import pairs
from specscope.app.loaded import (
    Line,
    batch_sizes,
    bench_prompts,
    parse_arrivals,
    poisson,
    policies_of,
    served_lines,
)
from specscope.app.runs import LiveRun, RunRequest
from specscope.app.service import Service
from specscope.app.tabs.requests import MOST_PASSES, VIRTUAL, FormError, at, check_profile, lines_of
from specscope.engine.bounds import check_prompt
from specscope.engine.checkpoints.forms import FORMS
from specscope.engine.errors import UsageError, shown
from specscope.engine.methods import BASELINE, METHODS
from specscope.engine.run.policies import FIXED
from specscope.engine.run.serving import CHUNK, Load, under_load
from specscope.engine.simulate.profile import Profile
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, check_range
from specscope.traces.lab.axes import ACCEPTANCE, USUAL, Axis, axis, sweepable
from specscope.traces.lab.points import Point, points_of
from specscope.traces.lab.sweep import MOST_TOKENS, Job, Runner, Scripted, Sweep

HERE = "here"
"""Value of the cluster for measured runs on this machine."""
MODELS_ROW = "none"
"""Value of the second axis for a sweep over one field."""
MOST_PROMPTS = 8
MOST_RUNS = 240
"""Most runs of a sweep with models, plain decoding included: others wait meanwhile."""
AT_ONCE, RATE, TIMES = "at once", "rate", "times"
MOST_METHODS = 5
"""Methods beside plain decoding."""
MOST_SIZES = 8
MOST_REQUESTS = MOST_LOAD_TOKENS = 256
"""Requests, and new tokens of a request."""
MOST_MS = 3_600_000


class SweepSettings(NamedTuple):
    """The values of the Lab's controls."""

    method: str
    field: str
    values: str
    rows: str
    """Second axis: a field, `ACCEPTANCE`, `DRAFTER` or `MODELS_ROW`."""
    row_values: str
    profile: str
    """A profile's name, or `HERE`."""
    pair: str
    """The modelled pair; the profile's default if empty."""
    tokens: float | None
    seeds: float | None
    models: str
    prompts: str
    passes: float | None


class LoadSettings(NamedTuple):
    """The values of the Load tab's controls."""

    methods: Sequence[str]
    models: str
    profile: str
    profile_pair: str
    """The modelled pair; the profile's default if empty."""
    arriving: str
    """`AT_ONCE`, `RATE` or `TIMES`."""
    rate: float | None
    times: str
    """A time in seconds a line."""
    requests: float | None
    sizes: str
    """Batch sizes, separated by commas."""
    tokens: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    prompts: str
    """One a line; the bench's if empty."""
    policies: Sequence[str] = (FIXED,)


class SweepWork(NamedTuple):
    """A sweep that can begin."""

    plan: Sweep
    run: Runner
    points: list[Point]


class LoadCell(NamedTuple):
    """One run of a load."""

    line: Line
    batch: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Runs that can begin, in their order: all methods with the smallest batch first."""

    cells: tuple[LoadCell, ...]
    arrivals: tuple[float, ...]
    request: RunRequest
    """What all runs share; `prompt` and `further` are the requests' prompts."""
    ttft_ms: float
    tpot_ms: float
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why methods do not run under a policy, by the name of their line."""


LAB = {name: f"lab-{name}" for name in ("rows", "profile", "tokens", "seeds", "passes")}
"""The controls of the Lab's settings that an error may name; `LOAD` likewise."""


@at("lab-values", LAB)
def sweep_work(given: SweepSettings, service: Service, stop: threading.Event) -> SweepWork:
    with at("lab-profile"):
        check_profile(given.profile, HERE)
    if given.method not in sweepable():
        message = f"{shown(given.method)} has no sweep; choose one of {', '.join(sweepable())}"
        raise FormError("lab-method", message)
    method, scripted = METHODS[given.method], given.rows == ACCEPTANCE
    prompts, measured = lines_of(given.prompts), given.profile == HERE
    passes = _whole("passes", given.passes, MOST_PASSES)
    columns = axis(method, str(given.field), str(given.values))
    with at("lab-row-values"):
        rows = None if given.rows == MODELS_ROW else axis(method, str(given.rows), str(given.row_values))
        _check_drafters(rows)
    plan = Sweep(
        given.method,
        columns,
        rows,
        samples=int(given.seeds or 0) if scripted else 1 if method.batched else len(prompts),
        passes=passes if measured else 1,
        measured=measured,
    )
    plan.check()
    with at("lab-pair"):
        points = points_of(plan, None if measured else given.profile, given.pair)
        if not measured:
            Profile.load(given.profile).latency(given.pair or None)
    if scripted:
        runner = Scripted(given.profile, given.pair or "", int(given.tokens or 0))
        runner.check(plan.samples)
        return SweepWork(plan, runner, points)
    runs = 2 * len(plan.places) * plan.samples * plan.passes
    check_range("the number of runs, two for each cell, prompt and pass,", runs, 0, MOST_RUNS)
    tokens = _whole("tokens", given.tokens, MOST_TOKENS)
    with at("lab-prompts"):
        check_range("the number of prompts", len(prompts), 1, MOST_PROMPTS)
        _check_prompts(prompts)
    with at("lab-models"):
        request = _request(given.models, [given.method], prompts, tokens, given.profile, given.pair)
    messages = (request.prompt, *request.further)

    def decode(job: Job) -> Trace:
        """Queue a job at the service, and wait for its end."""
        first, *further = messages if method.batched else [messages[job.sample]]
        drafter = () if job.drafter == USUAL else (job.drafter,)
        asked = {"method": job.method, "config": job.config, "group": job.group, "drafter": drafter}
        run = service.start(replace(request, prompt=first, further=tuple(further), **asked))
        for _ in _waiting(run, stop):
            pass
        return run.result()

    return SweepWork(plan, decode, points)


def servable() -> list[str]:
    """Return the keys of the methods that run under load with their default settings."""
    found = list[str]()
    for key in METHODS:
        with suppress(UsageError):
            _check(Line(key))
            found.append(key)
    return found


def _check(line: Line) -> None:
    method = METHODS[line.method]
    under_load(line.method, method.layout(method.configure({})), Load((0.0,), policy=line.policy), 1)


LOAD = {
    "the number of methods": "load-methods",
    "new tokens": "load-tokens",
    "requests": "load-requests",
    "the limit of TTFT in ms": "load-ttft",
    "the limit of TPOT in ms": "load-tpot",
}


@at("load-policies", LOAD)
def load_plan(given: LoadSettings) -> LoadPlan:
    with at("load-profile"):
        check_profile(given.profile, HERE)
    if given.profile != HERE:
        with at("load-pair"):
            Profile.load(given.profile).latency(given.profile_pair or None)
    methods = [key for key in dict.fromkeys(map(str, given.methods or ())) if key != BASELINE]
    check_range("the number of methods", len(methods), 1, MOST_METHODS)
    if unable := [key for key in methods if key not in servable()]:
        message = f"{shown(unable[0])} does not run under load; choose one of {', '.join(servable())}"
        raise FormError("load-methods", message)
    policies = policies_of(",".join(map(str, given.policies or ())), "the list of policies")
    lines, left_out = served_lines(methods, policies, _check)
    check_range("the number of methods times policies", len(lines) - 1, 1, MOST_METHODS)
    with at("load-sizes"):
        sizes = batch_sizes(given.sizes, "a batch size")
        check_range("the number of batch sizes", len(sizes), 1, MOST_SIZES)
    tokens = _whole("new tokens", given.tokens, MOST_LOAD_TOKENS)
    arrivals = _arrivals(given)
    known = lines_of(given.prompts) or bench_prompts()
    with at("load-prompts"):
        _check_prompts(known)
    limits = {"TTFT": float(given.ttft_ms or 0), "TPOT": float(given.tpot_ms or 0)}
    for name, limit in limits.items():
        check_range(f"the limit of {name} in ms", limit, 0, MOST_MS, exclusive=True)
    prompts = [known[i % len(known)] for i in range(len(arrivals))]
    with at("load-models"):
        request = _request(given.models, methods, prompts, tokens, given.profile, given.profile_pair)
    cells = tuple(LoadCell(line, batch) for batch in sizes for line in lines)
    return LoadPlan(cells, tuple(arrivals), request, *limits.values(), left_out)


def serve(
    plan: LoadPlan, service: Service, stop: threading.Event
) -> Iterator[tuple[LoadCell, LiveRun, Trace | None]]:
    """Execute the runs one after the other.

    A cell comes several times while it waits and runs, and at its end with the trace.
    """
    groups = {cell.batch: uuid.uuid4().hex[:12] for cell in plan.cells}
    for cell in plan.cells:
        load, group = (plan.arrivals, cell.batch, CHUNK, cell.line.policy), groups[cell.batch]
        run = service.start(replace(plan.request, method=cell.line.method, load=load, group=group))
        for _ in _waiting(run, stop, 0.25):
            yield cell, run, None
        yield cell, run, run.result()


def _waiting(run: LiveRun, stop: threading.Event, pause: float = 0.05) -> Iterator[None]:
    """Yield every `pause` seconds until a run has ended; it is cancelled if the page is closed."""
    try:
        while not run.wait(pause):
            if stop.is_set():
                run.cancel()
            yield
    finally:
        if not run.ended:
            run.cancel()


def _request(
    models: str, methods: Sequence[str], prompts: Sequence[str], tokens: int, profile: str, profile_pair: str
) -> RunRequest:
    """Return what all runs of an experiment share; refuse what the models cannot run."""
    if models not in pairs.NAMES:
        raise UsageError(f"there are no models {shown(models)}; choose one of {', '.join(pairs.NAMES)}")
    for method in (METHODS[key] for key in methods):
        if lacking := pairs.lacks(models, method.layout(method.configure({}))):
            raise UsageError(
                f"{method.title} needs {lacking}, and {pairs.label(models)} has none; choose another method or other "
                "models"
            )
    place: dict[str, Any] = {}
    if profile != HERE:
        place = {"runtime": VIRTUAL, "profile": profile, "profile_pair": profile_pair or None}
    first, *further = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return RunRequest(
        method=methods[0], prompt=first, further=tuple(further), limits=Limits(tokens), pair=models, **place
    )


def _check_prompts(prompts: Iterable[str]) -> None:
    for prompt in prompts:
        check_prompt(prompt)


def _check_drafters(rows: Axis | None) -> None:
    """Refuse a drafter that is a path: it would name a folder of the server."""
    known: tuple[str, ...] = (USUAL, *FORMS)
    asked: Iterable[Any] = rows.values if rows and rows.drafters else ()
    if unknown := [value for value in asked if value not in known]:
        raise UsageError(f"there is no drafter {shown(unknown[0])}; choose among {', '.join(known)}")


def _arrivals(given: LoadSettings) -> list[float]:
    if given.arriving == TIMES:
        with at("load-times"):
            times = [one.seconds for one in parse_arrivals(str(given.times or ""), "the list of times")]
            check_range("the number of times", len(times), 1, MOST_REQUESTS)
        return times
    count = _whole("requests", given.requests, MOST_REQUESTS)
    if given.arriving == RATE:
        with at("load-rate"):
            return poisson(float(given.rate or 0), count, seed=0)
    if given.arriving != AT_ONCE:
        message = f"requests arrive {shown(given.arriving)}; choose {AT_ONCE}, {RATE} or {TIMES}"
        raise FormError("load-arriving", message)
    return [0.0] * count


def _whole(name: str, value: float | None, most: int) -> int:
    number = int(value or 0)
    check_range(name, number, 1, most)
    return number
