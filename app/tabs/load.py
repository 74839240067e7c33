"""The Load tab: the settings of requests under load on the page, their runs, and the tab."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gradio as gr

from specscope.app.busy import busy_since, read_load
from specscope.app.experiments.load import (
    LoadLine,
    LoadRun,
    LoadSetup,
    batch_sizes,
    html,
    parse_arrivals,
    poisson,
    policies_of,
    served_lines,
)
from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.app.jobs.service import Service
from specscope.app.named import bench_prompts
from specscope.app.render.html import alert, note
from specscope.app.render.lab import progress
from specscope.app.tabs.lab import request_of, waiting
from specscope.app.tabs.requests import FormError, at, check_profile, lines_of
from specscope.app.tabs.settings import HERE, Experiment, asked, check, clusters, marked, models, read, row
from specscope.app.tabs.wiring import CHARTS, QUIET
from specscope.engine.bounds import check_prompt
from specscope.engine.errors import SpecScopeError, UsageError, shown
from specscope.engine.methods import BASELINE, METHODS
from specscope.engine.run.policies import FIXED, POLICIES
from specscope.engine.run.serving import Load, under_load
from specscope.engine.simulate.profile import Profile
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, check_range
from specscope.traces.facts.requests import requests

_LOAD = (
    "From which batch size on does a method stop paying? Requests arrive while others decode: each waits for a KV "
    "slot, and its prompt joins the forwards of the others in chunks; the last one gives its first token. "
    "Plain decoding runs beside every method. Each run is stored, and opens from the table."
)
AT_ONCE, RATE, TIMES = "at once", "rate", "times"
MOST_METHODS = 5
"""Methods beside plain decoding."""
MOST_SIZES = 8
MOST_REQUESTS = MOST_TOKENS = 256
"""Requests, and new tokens of a request."""
MOST_MS = 3_600_000


def servable() -> list[str]:
    """Return the keys of the methods that run under load with their default settings."""
    found = list[str]()
    for key in METHODS:
        with suppress(UsageError):
            _check(LoadLine(key))
            found.append(key)
    return found


def _check(line: LoadLine) -> None:
    method = METHODS[line.method]
    under_load(line.method, method.layout(method.configure({})), Load((0.0,), policy=line.policy), 1)


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The values of the Load tab's controls."""

    methods: Sequence[str] = asked(
        "Methods beside plain decoding",
        choices=lambda: [(METHODS[key].title, key) for key in servable() if key != BASELINE],
        multiselect=True,
    )
    policies: Sequence[str] = asked(
        "Policies of drafts, one line of the charts each",
        choices=lambda: [(f"{name}: {what}", name) for name, what in POLICIES.items()],
        default=(FIXED,),
        multiselect=True,
    )
    profile: str = asked("Cluster", choices=clusters)
    """A profile's name, or `HERE`."""
    pair: str = asked("Modelled pair")
    """The profile's default if empty."""
    models: str = asked("Models that decode", choices=models)
    arriving: str = asked(
        "Requests arrive",
        choices=lambda: [("All at once", AT_ONCE), ("At a rate", RATE), ("At these times", TIMES)],
    )
    rate: float = asked("Requests per second", visible=False)
    times: str = asked("Seconds, one per line", lines=3, max_lines=8, visible=False)
    requests: int = asked("Requests", bounds=(0, MOST_REQUESTS))
    tokens: int = asked("New tokens of each", bounds=(1, MOST_TOKENS), said="new tokens")
    prompts: str = asked(
        "Prompts, one per line", lines=1, max_lines=6, placeholder="Empty: the bench's prompts."
    )
    sizes: str = asked("Batch sizes")
    """Separated by commas."""
    ttft: float = asked("Good: first token within ms", bounds=(0, MOST_MS), said="the limit of TTFT in ms")
    tpot: float = asked("and ms per further token", bounds=(0, MOST_MS), said="the limit of TPOT in ms")

    def __post_init__(self) -> None:
        check(self, "load")


def usual_settings() -> LoadSettings:
    return LoadSettings(**read("load")["settings"])


class LoadPlan(NamedTuple):
    """Runs that can begin."""

    serving: LoadSetup
    request: RunRequest
    """What all runs share; `prompt` and `further` are the requests' prompts."""


CONTROLS = {"the number of methods": "load-methods"}
"""A control that an error names by what it counts."""


@at("load-policies", CONTROLS)
def load_plan(given: LoadSettings) -> LoadPlan:
    with at("load-profile"):
        check_profile(given.profile, HERE)
    if given.profile != HERE:
        with at("load-pair"):
            Profile.load(given.profile).latency(given.pair or None)
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
    arrivals = _arrivals(given)
    known = lines_of(given.prompts) or bench_prompts()
    with at("load-prompts"):
        for prompt in known:
            check_prompt(prompt)
    prompts = [known[i % len(known)] for i in range(len(arrivals))]
    with at("load-models"):
        request = request_of(given.models, methods, prompts, Limits(given.tokens), given.profile, given.pair)
    return LoadPlan(LoadSetup(lines, left_out, sizes, tuple(arrivals), given.ttft, given.tpot), request)


def _arrivals(given: LoadSettings) -> list[float]:
    if given.arriving == TIMES:
        with at("load-times"):
            times = [one.seconds for one in parse_arrivals(str(given.times or ""), "the list of times")]
            check_range("the number of times", len(times), 1, MOST_REQUESTS)
        return times
    with at("load-requests"):
        check_range("requests", given.requests, 1, MOST_REQUESTS)
    if given.arriving == RATE:
        with at("load-rate"):
            return poisson(given.rate, given.requests, seed=0)
    if given.arriving != AT_ONCE:
        message = f"requests arrive {shown(given.arriving)}; choose {AT_ONCE}, {RATE} or {TIMES}"
        raise FormError("load-arriving", message)
    return [0.0] * given.requests


def serve(
    plan: LoadPlan, jobs: Sequence[LoadRun], service: Service, stop: threading.Event
) -> Iterator[tuple[LoadRun, LiveRun, Trace | None]]:
    """Execute the runs one after the other.

    A job comes several times while it waits and runs, and at its end with the trace.
    """
    for job in jobs:
        run = service.start(replace(plan.request, method=job.line.method, load=job.load, group=job.group))
        for _ in waiting(run, stop, 0.25):
            yield job, run, None
        yield job, run, run.result()


def build_load(service: Service) -> Experiment[LoadSettings]:
    made = Experiment("load", usual_settings(), service, _work, example)
    with made.card("Serve requests under load", _LOAD) as controls:
        controls.add("methods", "policies")
        with row():
            controls.add_cluster("profile", "pair")
            controls.add("models")
        with row():
            controls.add("arriving", "rate", "times", "requests", "tokens", "prompts")
        with row():
            controls.add("sizes", "ttft", "tpot")
            made.add_buttons("Serve")
        made.add_result(js_on_load=CHARTS)
    timed = [controls[name] for name in ("rate", "times", "requests")]
    controls["arriving"].change(offer, controls["arriving"], timed, **QUIET)
    return made


def offer(arriving: str) -> list[Any]:
    """Show the controls of when requests arrive."""
    shown = (arriving == RATE, arriving == TIMES, arriving != TIMES)
    return [gr.update(visible=visible) for visible in shown]


def _work(service: Service, given: LoadSettings, stop: threading.Event) -> Generator[tuple[str, str]]:
    plan, done, before, drawn = load_plan(given), 0, read_load(), ""
    cells, jobs = dict[LoadLine, dict[int, Trace]](), plan.serving.jobs()
    last = {job.batch: job for job in jobs}.values()
    yield progress(done, len(jobs), "runs"), drawn
    try:
        for job, run, trace in serve(plan, jobs, service, stop):
            if trace is not None:
                done += 1
                cells.setdefault(job.line, {})[job.batch] = trace
                drawn = _result(plan, cells) if job in last else drawn
            now = f"{job.line.title}, batch {job.batch}: {_state(plan, run)}"
            yield progress(done, len(jobs), "runs", now), drawn
    except SpecScopeError as error:
        over = note("Stopped: the finished runs are shown." if cells else str(error))
        yield over if stop.is_set() else alert(error), _result(plan, cells)
    else:
        warning = "" if plan.request.profile else busy_since(before)
        yield note(f"{done} runs."), _result(plan, cells, warning)


def _state(plan: LoadPlan, run: LiveRun) -> str:
    """Return what a run does: how many of its requests got their first token, once it runs."""
    if run.state != "running" or (trace := run.trace()) is None:
        return run.state
    begun = sum(one.ttft is not None for one in requests(trace))
    return f"{begun} of {len(plan.serving.arrivals)} requests have their first token"


def _result(plan: LoadPlan, cells: dict[LoadLine, dict[int, Trace]], warning: str = "") -> str:
    """Return the figures of the runs that are done; empty without one."""
    return html(plan.serving.result(cells, warning)) if cells.get(LoadLine(BASELINE)) else ""


def example() -> str:
    """Return verdicts, charts and table of the finished example; its runs cannot be opened."""
    return marked("Serve") + html(read("load")["result"], links=False)


def make_example(service: Service) -> dict[str, Any]:
    """Run the usual settings; return their result."""
    plan, cells = load_plan(usual_settings()), dict[LoadLine, dict[int, Trace]]()
    for job, _, trace in serve(plan, plan.serving.jobs(), service, threading.Event()):
        if trace is not None:
            cells.setdefault(job.line, {})[job.batch] = trace
    return {"result": plan.serving.result(cells)}
