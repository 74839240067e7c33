"""The Lab tab: sweeps of a method's settings, on a virtual cluster or measured on this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from app import pairs
from app.busy import busy_since, read_load
from app.examples import lab_example, lab_settings
from app.render.html import alert, note
from app.render.lab import progress, result
from app.tabs.analysis import CHARTS
from app.tabs.experiments import HERE, MODELS_ROW, SweepSettings, SweepWork, sweep_work
from app.tabs.plan import MOST_PASSES
from app.tabs.wiring import QUIET, Stops
from engine.checkpoints.forms import FORMS
from engine.errors import SpecScopeError, UsageError
from engine.methods import METHODS
from engine.simulate.profile import Profile, profiles
from traces.lab.axes import ACCEPTANCE, DRAFTER, USUAL, can_be_scripted, has_drafter, numeric, sweepable
from traces.lab.sweep import Cell, sweep

if TYPE_CHECKING:
    from app.service import Service
    from engine.methods import Setting

_ABOUT = (
    "Every cell is a run of the method's own code: speed-up over plain decoding under the same conditions, the mean of "
    "the seeds or prompts ± half of their range. Against acceptance, drafts are right at a given rate and no model "
    "decodes; against drafters, each one has a row; otherwise the models decode your prompts. A cell opens its trace."
)


class State(NamedTuple):
    """What the page shows of a sweep."""

    name: str
    message: str
    map: str


class Lab:
    """The tab's components and their event handlers."""

    def __init__(self, service: Callable[[], Service], pair: str | None = None) -> None:
        self.service, self._opening, self._first = service, pair, lab_settings()
        self.stops = Stops()
        html = partial(gr.HTML, apply_default_css=False)
        with gr.Column(elem_id="lab", elem_classes="app-card"):
            gr.HTML("<h2>Sweep the settings of a method</h2>" + note(_ABOUT))
            with gr.Row(elem_classes="app-whatif", equal_height=True):
                self._build_axes()
            with gr.Row(elem_classes="app-whatif", equal_height=True):
                self._build_place()
            with gr.Row(elem_classes="app-whatif", equal_height=True, visible=False) as self.decoded:
                self._build_models()
            self.message = html(elem_id="lab-message")
            self.map = html(elem_id="lab-map", js_on_load=CHARTS)
            self.name = gr.Textbox("", visible=False)
        self._connect()

    def _build_axes(self) -> None:
        first = self._first
        titles = [(METHODS[k].title, k) for k in sweepable()]
        fields, rows = _fields(first.method)["choices"], _rows(first.method)["choices"]
        self.method = gr.Dropdown(titles, value=first.method, label="Method")
        self.field = gr.Dropdown(fields, value=first.field, label="Sweep over")
        self.values = gr.Textbox(first.values, label="Values", max_lines=1)
        self.rows = gr.Dropdown(rows, value=first.rows, label="Against")
        self.row_values = gr.Textbox(first.row_values, label="Rates, drafters or values", max_lines=1)

    def _build_place(self) -> None:
        first = self._first
        clusters = [(Profile.load(name).title, name) for name in profiles()]
        places = [*clusters, ("This machine, measured", HERE)]
        modelled = pairs_of(first.profile)["choices"]
        self.profile = gr.Dropdown(places, value=first.profile, label="Cluster")
        self.pair = gr.Dropdown(modelled, value=first.pair, label="Modelled pair")
        self.tokens = gr.Number(first.tokens, precision=0, label="Tokens")
        self.seeds = gr.Number(first.seeds, precision=0, label="Seeds")
        self.start = gr.Button("Sweep", variant="primary", size="sm", min_width=0, elem_id="lab-start")
        self.stop = gr.Button("Stop", size="sm", min_width=0, interactive=False, elem_id="lab-stop")

    def _build_models(self) -> None:
        names = [(pairs.label(name), name) for name in pairs.NAMES]
        self.models = gr.Dropdown(names, value=self._opening or pairs.opening(), label="Models")
        self.prompts = gr.Textbox(self._first.prompts, label="Prompts, one per line", lines=2, max_lines=8)
        self.passes = gr.Radio(
            list(range(1, MOST_PASSES + 1)),
            value=self._first.passes,
            label="Passes of measured runs",
            elem_id="lab-passes",
        )

    def _connect(self) -> None:
        given = [
            *(self.method, self.field, self.values, self.rows, self.row_values),
            *(self.profile, self.pair, self.tokens, self.seeds),
            *(self.models, self.prompts, self.passes),
        ]
        axes = [self.field, self.values, self.rows, self.row_values, self.decoded, self.seeds]
        self.method.change(self.offer, self.method, axes, **QUIET)
        self.field.change(self.offer_values, [self.method, self.field], self.values, **QUIET)
        against = [self.row_values, self.decoded, self.seeds]
        self.rows.change(self.offer_rows, [self.method, self.rows], against, **QUIET)
        self.profile.change(lambda name: gr.update(**pairs_of(name)), self.profile, self.pair, **QUIET)
        self.stops.connect(self.start, self.stop, self.run, given, [self.name, self.message, self.map])

    # -- event handlers

    def first(self, name: str) -> Any:
        """Show the finished example, until a sweep has run: its charts import plotly."""
        return gr.skip() if name else lab_example()

    def offer(self, method: str) -> list[Any]:
        if method not in sweepable():
            return [gr.skip()] * 6
        rows = _rows(method)
        first = numeric(METHODS[method])[0]
        return [
            *(gr.update(**_fields(method)), _usual(first), gr.update(**rows)),
            *self.offer_rows(method, rows["value"]),
        ]

    def offer_values(self, method: str, field: str) -> Any:
        return gr.update(**_values(method, field))

    def offer_rows(self, method: str, rows: str) -> list[Any]:
        """Offer usual values of the second axis, and show the settings that it needs."""
        scripted = rows == ACCEPTANCE
        usual: dict[str, Any] = {"value": RATES} if scripted else _values(method, rows)
        values = gr.update(visible=rows != MODELS_ROW, **usual)
        return [values, gr.update(visible=not scripted), gr.update(visible=scripted)]

    def run(self, *given: Any) -> Iterator[State]:
        cells, work = list[Cell](), None
        with self.stops.work() as (name, stop):
            try:
                work = sweep_work(SweepSettings(*given), self.service(), stop)
                yield from self._states(name, work, cells, stop)
            except SpecScopeError as error:
                shown = result(work.plan, cells, work.points, drawn=True) if work and cells else ""
                yield State(name, alert(str(error)), shown)

    def _states(
        self, name: str, work: SweepWork, cells: list[Cell], stop: threading.Event
    ) -> Iterator[State]:
        plan, before = work.plan, read_load()
        yield State(name, progress(plan, cells), result(plan, cells, work.points))
        for cell in sweep(plan, work.run, stop):
            cells.append(cell)
            if plan.scripted:  # all other runs are stored
                self.service().hold([trace for passes in cell.traces for trace in passes])
            yield State(name, progress(plan, cells), result(plan, cells, work.points))
        ended = (
            f"Stopped after {len(cells)} of {len(plan.places)} cells."
            if stop.is_set()
            else f"{len(cells)} cells."
        )
        warning = busy_since(before) if plan.measured else ""
        message = note(" ".join(filter(None, [ended, warning])))
        yield State(name, message, result(plan, cells, work.points, drawn=True))


RATES = "0.5, 0.6, 0.7, 0.8, 0.9"


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
