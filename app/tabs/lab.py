"""The Lab and the Load tab: sweeps of a method's settings, and requests under load."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Any

import gradio as gr

from specscope.app import pairs
from specscope.app.busy import busy_since, read_load
from specscope.app.examples import lab_example, lab_settings, load_example, load_settings
from specscope.app.loaded import Line, result_of
from specscope.app.render.html import alert, note
from specscope.app.render.lab import load_progress, load_result, sweep_progress, sweep_result
from specscope.app.service import Service
from specscope.app.tabs.experiments import (
    AT_ONCE,
    HERE,
    MODELS_ROW,
    RATE,
    TIMES,
    LoadPlan,
    LoadSettings,
    SweepSettings,
    load_plan,
    servable,
    serve,
    sweep_work,
)
from specscope.app.tabs.requests import MOST_PASSES
from specscope.app.tabs.wiring import CHARTS, QUIET, SMALL, State, Stops, build_message, plain_html
from specscope.engine.checkpoints.forms import FORMS
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.methods import BASELINE, METHODS, Setting
from specscope.engine.run.policies import POLICIES
from specscope.engine.simulate.profile import Profile, profiles
from specscope.engine.trace.trace import Trace
from specscope.traces.lab.axes import (
    ACCEPTANCE,
    DRAFTER,
    USUAL,
    can_be_scripted,
    has_drafter,
    numeric,
    sweepable,
)
from specscope.traces.lab.sweep import Cell, sweep

_SWEEP = (
    "Every cell is a run of the method's own code: speed-up over plain decoding under the same conditions, the mean of "
    "the seeds or prompts ± half of their range. Against acceptance, drafts are right at a given rate and no model "
    "decodes; against drafters, each one has a row; otherwise the models decode your prompts. A cell opens its trace."
)
_LOAD = (
    "From which batch size on does a method stop paying? Requests arrive while others decode: each waits for a KV "
    "slot, and its prompt joins the forwards of the others in chunks; the last one gives its first token. "
    "Plain decoding runs beside every method. Each run is stored, and opens from the table."
)
RATES = "0.5, 0.6, 0.7, 0.8, 0.9"


class Lab:
    """The tab of sweeps: its components and their event handlers."""

    def __init__(self, service: Service, pair: str | None = None) -> None:
        self.service, self.stops = service, Stops()
        first = lab_settings()
        with gr.Column(elem_id="lab", elem_classes="app-card"):
            gr.HTML("<h2>Sweep the settings of a method</h2>" + note(_SWEEP))
            with _row():
                self._build_axes(first)
            with _row():
                self.profile, self.pair = _build_cluster(first.profile, first.pair, "lab")
                self.tokens = gr.Number(first.tokens, precision=0, label="Tokens", elem_id="lab-tokens")
                self.seeds = gr.Number(first.seeds, precision=0, label="Seeds", elem_id="lab-seeds")
                self.start, self.stop = _build_buttons("Sweep", "lab")
            with _row(visible=False) as self.decoded:
                self.models = _build_models(pair or pairs.opening(), "Models", "lab")
                label = "Prompts, one per line"
                more: dict[str, Any] = {"lines": 2, "max_lines": 8, "elem_id": "lab-prompts"}
                self.prompts = gr.Textbox(first.prompts, label=label, **more)
                passes, label = list(range(1, MOST_PASSES + 1)), "Passes of measured runs"
                self.passes = gr.Radio(passes, value=first.passes, label=label, elem_id="lab-passes")
            self.message = build_message("lab-message")
            self.map = plain_html(elem_id="lab-map", js_on_load=CHARTS)
            self.name = gr.Textbox("", visible=False)
        self._connect()

    def _build_axes(self, first: SweepSettings) -> None:
        titles = [(METHODS[k].title, k) for k in sweepable()]
        fields, rows = _fields(first.method)["choices"], _rows(first.method)["choices"]
        self.method = gr.Dropdown(titles, value=first.method, label="Method", elem_id="lab-method")
        self.field = gr.Dropdown(fields, value=first.field, label="Sweep over", elem_id="lab-field")
        self.values = gr.Textbox(first.values, label="Values", max_lines=1, elem_id="lab-values")
        self.rows = gr.Dropdown(rows, value=first.rows, label="Against", elem_id="lab-rows")
        named = {"label": "Rates, drafters or values", "elem_id": "lab-row-values"}
        self.row_values = gr.Textbox(first.row_values, max_lines=1, **named)

    def _connect(self) -> None:
        given = [
            *(self.method, self.field, self.values, self.rows, self.row_values),
            *(self.profile, self.pair, self.tokens, self.seeds),
            *(self.models, self.prompts, self.passes),
        ]
        against = [self.row_values, self.decoded, self.seeds]
        self.method.change(self.offer, self.method, [self.field, self.values, self.rows, *against], **QUIET)
        self.field.change(self.offer_values, [self.method, self.field], self.values, **QUIET)
        self.rows.change(self.offer_rows, [self.method, self.rows], against, **QUIET)
        self.stops.connect(self.start, self.stop, self.run, given, [self.name, self.message, self.map])

    # -- event handlers

    def first(self, name: str) -> Any:
        """Show the finished example, until a sweep has run: its charts import plotly."""
        return gr.skip() if name else lab_example()

    def offer(self, method: str) -> list[Any]:
        if method not in sweepable():
            return [gr.skip()] * 6
        rows, usual = _rows(method), _usual(numeric(METHODS[method])[0])
        shown = [gr.update(**_fields(method)), usual, gr.update(**rows)]
        return [*shown, *self.offer_rows(method, rows["value"])]

    def offer_values(self, method: str, field: str) -> Any:
        return gr.update(**_values(method, field))

    def offer_rows(self, method: str, rows: str) -> list[Any]:
        """Offer usual values of the second axis, and show the settings that it needs."""
        scripted = rows == ACCEPTANCE
        usual: dict[str, Any] = {"value": RATES} if scripted else _values(method, rows)
        values = gr.update(visible=rows != MODELS_ROW, **usual)
        return [values, gr.update(visible=not scripted), gr.update(visible=scripted)]

    def run(self, *given: Any) -> Iterator[State]:
        return self.stops.states(lambda stop: self._work(SweepSettings(*given), stop))

    def _work(self, given: SweepSettings, stop: threading.Event) -> Generator[tuple[str, str]]:
        work, cells, before = sweep_work(given, self.service, stop), list[Cell](), read_load()
        plan = work.plan
        yield sweep_progress(plan, cells), sweep_result(plan, cells, work.points)
        try:
            for cell in sweep(plan, work.run, stop):
                cells.append(cell)
                if plan.scripted:  # all other runs are stored
                    self.service.hold([trace for passes in cell.traces for trace in passes])
                yield sweep_progress(plan, cells), sweep_result(plan, cells, work.points)
        except SpecScopeError as error:
            yield alert(error), sweep_result(plan, cells, work.points, drawn=True) if cells else ""
            return
        stopped = f"Stopped after {len(cells)} of {len(plan.places)} cells."
        ended = stopped if stop.is_set() else f"{len(cells)} cells."
        warning = busy_since(before) if plan.measured else ""
        message = note(" ".join(filter(None, [ended, warning])))
        yield message, sweep_result(plan, cells, work.points, drawn=True)


class LoadTab:
    """The tab of requests under load: its components and their event handlers."""

    def __init__(self, service: Service) -> None:
        self.service, self.stops = service, Stops()
        first = load_settings()
        with gr.Column(elem_id="load", elem_classes="app-card"):
            gr.HTML("<h2>Serve requests under load</h2>" + note(_LOAD))
            titles = [(METHODS[key].title, key) for key in servable() if key != BASELINE]
            named = {"label": "Methods beside plain decoding", "elem_id": "load-methods"}
            self.methods = gr.Dropdown(titles, value=first.methods, multiselect=True, **named)
            titles = [(f"{name}: {what}", name) for name, what in POLICIES.items()]
            named = {"label": "Policies of drafts, one line of the charts each", "elem_id": "load-policies"}
            self.policies = gr.Dropdown(titles, value=[*first.policies], multiselect=True, **named)
            with _row():
                self.profile, self.pair = _build_cluster(first.profile, first.profile_pair, "load")
                self.models = _build_models(first.models, "Models that decode", "load")
            with _row():
                self._build_requests(first)
            with _row():
                self.sizes = gr.Textbox(first.sizes, label="Batch sizes", max_lines=1, elem_id="load-sizes")
                self.ttft = gr.Number(first.ttft_ms, label="Good: first token within ms", elem_id="load-ttft")
                self.tpot = gr.Number(first.tpot_ms, label="and ms per further token", elem_id="load-tpot")
                self.start, self.stop = _build_buttons("Serve", "load")
            self.message = build_message("load-message")
            self.result = plain_html(elem_id="load-result", js_on_load=CHARTS)
            self.name = gr.Textbox("", visible=False)
        self._connect()

    def _build_requests(self, first: LoadSettings) -> None:
        ways = [("All at once", AT_ONCE), ("At a rate", RATE), ("At these times", TIMES)]
        self.arriving = gr.Dropdown(
            ways, value=first.arriving, label="Requests arrive", elem_id="load-arriving"
        )
        self.rate = gr.Number(first.rate, label="Requests per second", visible=False, elem_id="load-rate")
        hidden = {"lines": 3, "max_lines": 8, "visible": False, "elem_id": "load-times"}
        self.times = gr.Textbox(first.times, label="Seconds, one per line", **hidden)
        self.requests = gr.Number(first.requests, precision=0, label="Requests", elem_id="load-requests")
        self.tokens = gr.Number(first.tokens, precision=0, label="New tokens of each", elem_id="load-tokens")
        named = {"label": "Prompts, one per line", "placeholder": "Empty: the bench's prompts."}
        named["elem_id"] = "load-prompts"
        self.prompts = gr.Textbox(first.prompts, lines=1, max_lines=6, **named)

    def _connect(self) -> None:
        given = [
            *(self.methods, self.models, self.profile, self.pair, self.arriving, self.rate, self.times),
            *(self.requests, self.sizes, self.tokens, self.ttft, self.tpot, self.prompts),
            self.policies,
        ]
        self.arriving.change(self.offer, self.arriving, [self.rate, self.times, self.requests], **QUIET)
        self.stops.connect(self.start, self.stop, self.run, given, [self.name, self.message, self.result])

    # -- event handlers

    def first(self, name: str) -> Any:
        return gr.skip() if name else load_example()

    def offer(self, arriving: str) -> list[Any]:
        shown = (arriving == RATE, arriving == TIMES, arriving != TIMES)
        return [gr.update(visible=visible) for visible in shown]

    def run(self, *given: Any) -> Iterator[State]:
        return self.stops.states(lambda stop: self._work(LoadSettings(*given), stop))

    def _work(self, given: LoadSettings, stop: threading.Event) -> Generator[tuple[str, str]]:
        plan, done, before, drawn = load_plan(given), 0, read_load(), ""
        cells: dict[Line, dict[int, Trace]] = {}
        last = {cell.batch: cell for cell in plan.cells}.values()
        yield load_progress(plan, done), drawn
        try:
            for cell, run, trace in serve(plan, self.service, stop):
                if trace is not None:
                    done += 1
                    cells.setdefault(cell.line, {})[cell.batch] = trace
                    drawn = _result(plan, cells) if cell in last else drawn
                yield load_progress(plan, done, cell, run), drawn
        except SpecScopeError as error:
            over = note("Stopped: the finished runs are shown." if cells else str(error))
            yield over if stop.is_set() else alert(error), _result(plan, cells)
        else:
            warning = "" if plan.request.profile else busy_since(before)
            yield note(f"{done} runs."), _result(plan, cells, warning)


def _row(**more: Any) -> gr.Row:
    return gr.Row(elem_classes="app-whatif", equal_height=True, **more)


def _build_cluster(profile: str, pair: str, tab: str) -> tuple[gr.Dropdown, gr.Dropdown]:
    clusters = [(Profile.load(name).title, name) for name in profiles()]
    choices = [*clusters, ("This machine, measured", HERE)]
    where = gr.Dropdown(choices, value=profile, label="Cluster", elem_id=f"{tab}-profile")
    offered = pairs_of(profile)
    named = {"label": "Modelled pair", "elem_id": f"{tab}-pair"}
    modelled = gr.Dropdown(offered["choices"], value=pair or offered["value"], **named)
    where.change(lambda name: gr.update(**pairs_of(name)), where, modelled, **QUIET)
    return where, modelled


def _build_models(name: str, label: str, tab: str) -> gr.Dropdown:
    choices = [(pairs.label(key), key) for key in pairs.NAMES]
    return gr.Dropdown(choices, value=name, label=label, elem_id=f"{tab}-models")


def _build_buttons(title: str, name: str) -> tuple[gr.Button, gr.Button]:
    start = gr.Button(title, variant="primary", elem_id=f"{name}-start", **SMALL)
    return start, gr.Button("Stop", interactive=False, elem_id=f"{name}-stop", **SMALL)


def _result(plan: LoadPlan, cells: dict[Line, dict[int, Trace]], warning: str = "") -> str:
    """Return the figures of the runs that are done; empty without one."""
    if not cells.get(Line(BASELINE)):
        return ""
    return load_result(result_of(cells, plan.left_out, plan.ttft_ms, plan.tpot_ms, warning))


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


def pairs_of(name: str) -> dict[str, Any]:
    try:
        profile = Profile.load(name) if name in profiles() else None
    except UsageError:
        profile = None
    if profile is None:
        return {"choices": [("None", "")], "value": ""}
    return {"choices": [(p.title, key) for key, p in profile.pairs.items()], "value": profile.default}
