"""The Lab: a sweep's settings on the page, its runs, and the tab."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gradio as gr

from specscope.app import pairs
from specscope.app.busy import busy_since, read_load
from specscope.app.experiments.sweep import axes_of, plan_of, scripted
from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.app.jobs.service import Service
from specscope.app.render.html import alert, note
from specscope.app.render.lab import progress, sweep_result
from specscope.app.tabs.requests import MOST_PASSES, VIRTUAL, FormError, at, check_profile, lines_of
from specscope.app.tabs.settings import (
    HERE,
    Experiment,
    asked,
    check,
    clusters,
    ids_of,
    marked,
    models,
    read,
    row,
)
from specscope.app.tabs.wiring import CHARTS, QUIET
from specscope.engine.bounds import check_prompt
from specscope.engine.checkpoints.forms import FORMS
from specscope.engine.errors import SpecScopeError, UsageError, shown
from specscope.engine.methods import METHODS, Setting
from specscope.engine.simulate.profile import Profile
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits, check_choice, check_range
from specscope.traces.lab.axes import (
    ACCEPTANCE,
    DRAFTER,
    USUAL,
    Axis,
    can_be_scripted,
    has_drafter,
    numeric,
    sweepable,
)
from specscope.traces.lab.points import Point, points_of
from specscope.traces.lab.sweep import MOST_SEEDS, MOST_TOKENS, Runner, Sweep, SweepCell, SweepRun, sweep

_SWEEP = (
    "Every cell is a run of the method's own code: speed-up over plain decoding under the same conditions, the mean of "
    "the seeds or prompts ± half of their range. Acceptance: drafts are right at the given rate, and no model decodes. "
    "Drafters: each one has a row. Otherwise the models decode your prompts. A cell opens its trace."
)
RATES = "0.5, 0.6, 0.7, 0.8, 0.9"
MODELS_ROW = "none"
"""Value of the second axis for a sweep over one field."""
MOST_PROMPTS = 8
MOST_RUNS = 240
"""Most runs of a sweep with models, plain decoding included: others wait meanwhile."""


@dataclass(frozen=True, slots=True)
class LabSettings:
    """The values of the Lab's controls."""

    method: str = asked("Method", choices=lambda: [(METHODS[k].title, k) for k in sweepable()])
    field: str = asked("Sweep over")
    values: str = asked("Values")
    rows: str = asked("Against")
    """Second axis: a field, `ACCEPTANCE`, `DRAFTER` or `MODELS_ROW`."""
    row_values: str = asked("Rates, drafters or values")
    profile: str = asked("Cluster", choices=clusters)
    """A profile's name, or `HERE`."""
    pair: str = asked("Modelled pair")
    """The profile's default if empty."""
    tokens: int = asked("Tokens", bounds=(1, MOST_TOKENS))
    seeds: int = asked("Seeds", bounds=(0, MOST_SEEDS))
    models: str = asked("Models", choices=models)
    prompts: str = asked("Prompts, one per line", lines=2, max_lines=8)
    passes: int = asked(
        "Passes of measured runs",
        kind=gr.Radio,
        choices=lambda: [*range(1, MOST_PASSES + 1)],
        bounds=(1, MOST_PASSES),
    )

    def __post_init__(self) -> None:
        check(self, "lab")


def usual_settings() -> LabSettings:
    return LabSettings(**read("lab")["settings"])


class SweepWork(NamedTuple):
    """A sweep that can begin."""

    plan: Sweep
    run: Runner
    points: list[Point]


def sweep_work(given: LabSettings, service: Service, stop: threading.Event) -> SweepWork:
    with at("lab-values", ids_of(given, "lab")):
        plan, points, prompts = planned(given)
        if plan.scripted:
            return SweepWork(plan, scripted(plan, given.profile, given.pair, given.tokens), points)
        runs = 2 * len(plan.places) * plan.samples * plan.passes
        check_range("the number of runs, two for each cell, prompt and pass,", runs, 0, MOST_RUNS)
        with at("lab-prompts"):
            check_range("the number of prompts", len(prompts), 1, MOST_PROMPTS)
            for prompt in prompts:
                check_prompt(prompt)
        with at("lab-models"):
            limits, place = Limits(given.tokens), (given.profile, given.pair)
            request = request_of(given.models, [given.method], prompts, limits, *place)
    messages = (request.prompt, *request.further)

    def decode(job: SweepRun) -> Trace:
        """Queue a job at the service, and wait for its end."""
        first, *further = messages if METHODS[job.method].batched else [messages[job.sample]]
        drafter = () if job.drafter == USUAL else (job.drafter,)
        asked = {"method": job.method, "config": job.config, "group": job.group, "drafter": drafter}
        run = service.start(replace(request, prompt=first, further=tuple(further), **asked))
        for _ in waiting(run, stop):
            pass
        return run.result()

    return SweepWork(plan, decode, points)


def planned(given: LabSettings) -> tuple[Sweep, list[Point], Sequence[str]]:
    """Return the plan, the papers' points beside it, and the prompts."""
    with at("lab-profile"):
        check_profile(given.profile, HERE)
    if given.method not in sweepable():
        message = f"{shown(given.method)} has no sweep; choose one of {', '.join(sweepable())}"
        raise FormError("lab-method", message)
    axes = axes_of(given.method, [(str(given.field), str(given.values))])
    if given.rows != MODELS_ROW:
        with at("lab-row-values"):
            axes += axes_of(given.method, [(str(given.rows), str(given.row_values))])
            _check_drafters(axes[1])
    prompts, measured = lines_of(given.prompts), given.profile == HERE
    more: dict[str, Any] = {
        "measured": measured,
        "passes": given.passes if measured else 1,
        "seeds": given.seeds,
    }
    plan = plan_of(given.method, axes, {}, len(prompts), **more)
    with at("lab-pair"):
        if not measured:
            Profile.load(given.profile).latency(given.pair or None)
        return plan, points_of(plan, None if measured else given.profile, given.pair), prompts


def waiting(run: LiveRun, stop: threading.Event, pause: float = 0.05) -> Iterator[None]:
    """Yield every `pause` seconds until a run has ended; it is cancelled if the page is closed."""
    try:
        while not run.wait(pause):
            if stop.is_set():
                run.cancel()
            yield
    finally:
        if not run.ended:
            run.cancel()


def request_of(
    models: str, methods: Sequence[str], prompts: Sequence[str], limits: Limits, profile: str, pair: str
) -> RunRequest:
    """Return what all runs of an experiment share; refuse what the models cannot run."""
    check_choice(f"there are no models {shown(models)}", models, pairs.NAMES)
    for method in (METHODS[key] for key in methods):
        if lacking := pairs.lacks(models, method.layout(method.configure({}))):
            raise UsageError(
                f"{method.title} needs {lacking}, and {pairs.label(models)} has none; choose another method or other "
                "models"
            )
    virtual = {"runtime": VIRTUAL, "profile": profile, "profile_pair": pair or None}
    place: dict[str, Any] = {} if profile == HERE else virtual
    first, *further = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return RunRequest(methods[0], first, tuple(further), limits=limits, pair=models, **place)


def _check_drafters(rows: Axis) -> None:
    """Refuse a drafter that is a path: it would name a folder of the server."""
    known: tuple[str, ...] = (USUAL, *FORMS)
    asked: Iterable[Any] = rows.values if rows.drafters else ()
    if unknown := [value for value in asked if value not in known]:
        raise UsageError(f"there is no drafter {shown(unknown[0])}; choose among {', '.join(known)}")


def build_lab(service: Service, pair: str | None = None) -> Experiment[LabSettings]:
    first = usual_settings()
    made = Experiment("lab", first, service, _work, example)
    with made.card("Sweep the settings of a method", _SWEEP) as controls:
        with row():
            controls.add("method")
            controls.add("field", choices=_fields(first.method)["choices"])
            controls.add("values")
            controls.add("rows", choices=_rows(first.method)["choices"])
            controls.add("row_values")
        with row():
            controls.add_cluster("profile", "pair")
            controls.add("tokens", "seeds")
            made.add_buttons("Sweep")
        with row(visible=False) as decoded:
            controls.add("models", value=pair or pairs.opening())
            controls.add("prompts", "passes")
        made.add_result("map", js_on_load=CHARTS)
    one, against = controls, [controls["row_values"], decoded, controls["seeds"]]
    offered = [one["field"], one["values"], one["rows"], *against]
    one["method"].change(offer, one["method"], offered, **QUIET)
    one["field"].change(offer_values, [one["method"], one["field"]], one["values"], **QUIET)
    one["rows"].change(offer_rows, [one["method"], one["rows"]], against, **QUIET)
    return made


def offer(method: str) -> list[Any]:
    """Offer the axes of a method, with usual values."""
    if method not in sweepable():
        return [gr.skip()] * 6
    rows, usual = _rows(method), _usual(numeric(METHODS[method])[0])
    shown = [gr.update(**_fields(method)), usual, gr.update(**rows)]
    return [*shown, *offer_rows(method, rows["value"])]


def offer_values(method: str, field: str) -> Any:
    return gr.update(**_values(method, field))


def offer_rows(method: str, rows: str) -> list[Any]:
    """Offer usual values of the second axis, and show the settings that it needs."""
    scripted = rows == ACCEPTANCE
    usual: dict[str, Any] = {"value": RATES} if scripted else _values(method, rows)
    values = gr.update(visible=rows != MODELS_ROW, **usual)
    return [values, gr.update(visible=not scripted), gr.update(visible=scripted)]


def _work(service: Service, given: LabSettings, stop: threading.Event) -> Generator[tuple[str, str]]:
    work, cells, before = sweep_work(given, service, stop), list[SweepCell](), read_load()
    plan = work.plan
    yield progress(len(cells), len(plan.places), "cells"), sweep_result(plan, cells, work.points)
    try:
        for cell in sweep(plan, work.run, stop):
            cells.append(cell)
            if plan.scripted:  # all other runs are stored
                service.hold([trace for passes in cell.traces for trace in passes])
            yield progress(len(cells), len(plan.places), "cells"), sweep_result(plan, cells, work.points)
    except SpecScopeError as error:
        yield alert(error), sweep_result(plan, cells, work.points, drawn=True) if cells else ""
        return
    stopped = f"Stopped after {len(cells)} of {len(plan.places)} cells."
    ended = stopped if stop.is_set() else f"{len(cells)} cells."
    warning = busy_since(before) if plan.measured else ""
    message = note(" ".join(filter(None, [ended, warning])))
    yield message, sweep_result(plan, cells, work.points, drawn=True)


def example() -> str:
    """Return heat map and chart of the finished example; its cells have no traces to open."""
    found = read("lab")
    plan, points, _ = planned(usual_settings())
    cells = [SweepCell(row, column, tuple(map(tuple, speeds)), ()) for row, column, speeds in found["cells"]]
    return marked("Sweep", found["clock"]) + sweep_result(plan, cells, points, drawn=True, links=False)


def make_example(service: Service) -> dict[str, Any]:
    """Run the usual settings; return the cells and their clock."""
    work = sweep_work(usual_settings(), service, threading.Event())
    cells = list(sweep(work.plan, work.run))
    return {"clock": cells[0].clock, "cells": [[cell.row, cell.column, cell.speedups] for cell in cells]}


def _fields(method: str) -> dict[str, Any]:
    names = [s.name for s in numeric(METHODS[method])]
    return {"choices": names, "value": names[0]}


def _rows(method: str) -> dict[str, Any]:
    names = [(s.name, s.name) for s in numeric(METHODS[method])]
    rates = [("acceptance rate, without models", ACCEPTANCE)] if can_be_scripted(METHODS[method]) else []
    drafters = [("drafter, measured", DRAFTER)] if has_drafter(METHODS[method]) else []
    choices = [*rates, ("nothing: models decode", MODELS_ROW), *drafters, *names]
    return {"choices": choices, "value": choices[0][1]}


def _values(method: str, field: str) -> dict[str, Any]:
    """Return usual values of an axis as the value of a text box; empty for an unknown one."""
    if field == DRAFTER:
        return {"value": ", ".join((*FORMS, USUAL))}
    known = {s.name: s for s in numeric(METHODS[method])} if method in sweepable() else {}
    return {"value": _usual(known[field])} if field in known else {}


def _usual(field: Setting) -> str:
    """Return usual values of a field: eight whole numbers, or five steps over its range."""
    low = 1 if field.low is None else field.low
    high = low + 7 if field.high is None else field.high
    if field.type is int:
        return f"{low:g}-{min(high, low + 7):g}"
    return ", ".join(f"{low + (high - low) * k / 4:g}" for k in range(5))
