"""The Load tab: requests that arrive while others decode, by method and batch size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import gradio as gr

from app import pairs
from app.busy import busy_since, read_load
from app.examples import load_example, load_settings
from app.loaded import result_of
from app.render.html import alert, note
from app.render.load import progress, shown
from app.tabs.analysis import CHARTS
from app.tabs.experiments import (
    AT_ONCE,
    HERE,
    RATE,
    TIMES,
    LoadCell,
    LoadPlan,
    LoadSettings,
    load_plan,
    servable,
    serve,
)
from app.tabs.lab import pairs_of
from app.tabs.wiring import QUIET, Stops
from engine.errors import SpecScopeError
from engine.methods import BASELINE, METHODS
from engine.simulate.profile import Profile, profiles

if TYPE_CHECKING:
    from typing import TypeAlias

    from app.service import Service
    from engine.trace.trace import Trace

    Cells: TypeAlias = dict[str, dict[int, Trace]]

_ABOUT = (
    "From which batch size on does a method stop paying? Requests arrive while others decode: each waits for a KV "
    "slot, and its prompt joins the forwards of the others in chunks; the last one gives its first token. "
    "Plain decoding runs beside every method. Each run is stored, and opens from the table."
)


class State(NamedTuple):
    """What the page shows of the runs."""

    name: str
    message: str
    result: str


class LoadTab:
    """The tab's components and their event handlers."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self.service, self._first = service, load_settings()
        self.stops = Stops()
        html = partial(gr.HTML, apply_default_css=False)
        with gr.Column(elem_id="load", elem_classes="app-card"):
            gr.HTML("<h2>Serve requests under load</h2>" + note(_ABOUT))
            self._build_methods()
            with gr.Row(elem_classes="app-whatif", equal_height=True):
                self._build_place()
            with gr.Row(elem_classes="app-whatif", equal_height=True):
                self._build_requests()
            with gr.Row(elem_classes="app-whatif", equal_height=True):
                self._build_limits()
            self.message = html(elem_id="load-message")
            self.result = html(elem_id="load-result", js_on_load=CHARTS)
            self.name = gr.Textbox("", visible=False)
        self._connect()

    def _build_methods(self) -> None:
        titles = [(METHODS[key].title, key) for key in servable() if key != BASELINE]
        self.methods = gr.Dropdown(
            titles,
            value=self._first.methods,
            label="Methods beside plain decoding",
            multiselect=True,
            elem_id="load-methods",
        )

    def _build_place(self) -> None:
        first = self._first
        clusters = [(Profile.load(name).title, name) for name in profiles()]
        places = [*clusters, ("This machine, measured", HERE)]
        self.profile = gr.Dropdown(places, value=first.profile, label="Cluster")
        self.pair = gr.Dropdown(label="Modelled pair", **pairs_of(first.profile))
        names = [(pairs.label(name), name) for name in pairs.NAMES]
        self.models = gr.Dropdown(names, value=first.models, label="Models that decode")

    def _build_requests(self) -> None:
        first = self._first
        ways = [("All at once", AT_ONCE), ("At a rate", RATE), ("At these times", TIMES)]
        self.arriving = gr.Dropdown(ways, value=first.arriving, label="Requests arrive")
        self.rate = gr.Number(first.rate, label="Requests per second", visible=False)
        self.times = gr.Textbox(
            first.times, label="Seconds, one per line", lines=3, max_lines=8, visible=False
        )
        self.requests = gr.Number(first.requests, precision=0, label="Requests")
        self.tokens = gr.Number(first.tokens, precision=0, label="New tokens of each")
        self.prompts = gr.Textbox(
            first.prompts,
            label="Prompts, one per line",
            placeholder="Empty: the bench's prompts.",
            lines=1,
            max_lines=6,
        )

    def _build_limits(self) -> None:
        self.sizes = gr.Textbox(self._first.sizes, label="Batch sizes", max_lines=1)
        self.ttft = gr.Number(self._first.ttft_ms, label="Good: first token within ms")
        self.tpot = gr.Number(self._first.tpot_ms, label="and ms per further token")
        self.start = gr.Button("Serve", variant="primary", size="sm", min_width=0, elem_id="load-start")
        self.stop = gr.Button("Stop", size="sm", min_width=0, interactive=False, elem_id="load-stop")

    def _connect(self) -> None:
        given = [
            *(self.methods, self.models, self.profile, self.pair, self.arriving, self.rate, self.times),
            *(self.requests, self.sizes, self.tokens, self.ttft, self.tpot, self.prompts),
        ]
        ways = [self.rate, self.times, self.requests]
        self.arriving.change(self.offer, self.arriving, ways, **QUIET)
        self.profile.change(lambda name: gr.update(**pairs_of(name)), self.profile, self.pair, **QUIET)
        self.stops.connect(self.start, self.stop, self.run, given, [self.name, self.message, self.result])

    # -- event handlers

    def first(self, name: str) -> Any:
        return gr.skip() if name else load_example()

    def offer(self, arriving: str) -> list[Any]:
        return [
            gr.update(visible=visible) for visible in (arriving == RATE, arriving == TIMES, arriving != TIMES)
        ]

    def run(self, *given: Any) -> Iterator[State]:
        cells: Cells = {}
        plan: LoadPlan | None = None
        with self.stops.work() as (name, stop):
            try:
                plan = load_plan(LoadSettings(*given))
                yield from self._states(name, plan, cells, stop)
            except SpecScopeError as error:
                message = "Stopped: the finished runs are shown." if stop.is_set() and cells else str(error)
                end = note(message) if stop.is_set() else alert(message)
                yield State(name, end, _result(plan, cells, "") if plan else "")

    def _states(self, name: str, plan: LoadPlan, cells: Cells, stop: threading.Event) -> Iterator[State]:
        done, before, drawn = 0, read_load(), ""
        yield State(name, progress(plan, done), drawn)
        for cell, run, trace in serve(plan, self.service(), stop):
            if trace is not None:
                done += 1
                cells.setdefault(cell.method, {})[cell.batch] = trace
                if _last(plan, cell):
                    drawn = _result(plan, cells, "")
            yield State(name, progress(plan, done, cell, run), drawn)
        warning = "" if plan.request.profile else busy_since(before)
        yield State(name, note(f"{done} runs."), _result(plan, cells, warning))


def _last(plan: LoadPlan, cell: LoadCell) -> bool:
    return cell == [one for one in plan.cells if one.batch == cell.batch][-1]


def _result(plan: LoadPlan, cells: Cells, warning: str) -> str:
    """Return the figures of the runs that are done; empty without one."""
    if not cells.get(BASELINE):
        return ""
    return shown(result_of(cells, {}, plan.ttft_ms, plan.tpot_ms, warning))
