"""The Lab's map: which method is the fastest where, and a race at any of its places."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from specscope.app.jobs.service import Service
from specscope.app.render.html import alert, note
from specscope.app.render.lab import progress
from specscope.app.render.winners import map_html, race_html
from specscope.app.tabs.wiring import QUIET, SMALL, Stops, WorkState, build_message, plain_html
from specscope.engine.errors import SpecScopeError
from specscope.traces.lab.plan import MapPlan
from specscope.traces.lab.winners import VALUES, Result, given_back, results, with_target

TARGETS = (1, 2, 4, 8)
FILE = Path(__file__).parents[2] / "assets" / "examples" / "map.json"
_MAP = (
    "A drafter is 2 to 20 times as fast as the target, and right at a rate: which method decodes fastest on so many "
    "devices? The map is finished; Race runs all methods at one place, and their traces open from the table."
)


class MapPart:
    """The map with its choices, and the race at a place."""

    def __init__(self, service: Service) -> None:
        self.service, self.stops = service, Stops()
        plan, _ = stored()
        with gr.Column(elem_id="map", elem_classes="app-card"):
            gr.HTML("<h2>Which method is the fastest?</h2>" + note(_MAP))
            with gr.Row(elem_classes="app-whatif", equal_height=True):
                self.by = gr.Dropdown(list(VALUES), value="runs", label="Compare by")
                self.target = gr.Dropdown(list(TARGETS), value=1, label="The target's devices")
                self.c = gr.Dropdown(list(plan.ratios), value=5, label="c = T(target) / T(drafter)")
                self.rate = gr.Dropdown(list(plan.rates), value=0.8, label="Acceptance rate")
                self.start = gr.Button("Race", variant="primary", elem_id="map-start", **SMALL)
                self.stop = gr.Button("Stop", interactive=False, elem_id="map-stop", **SMALL)
            self.message = build_message("map-message")
            self.result = plain_html(elem_id="map-result")
            self.picture = plain_html(elem_id="map-picture")
            self.name = gr.Textbox("", visible=False)
        looks = [self.by, self.target]
        for look in looks:
            look.change(self.drawn, looks, self.picture, **QUIET)
        given: list[Component] = [self.c, self.rate, self.target]
        self.stops.connect(self.start, self.stop, self.run, given, [self.name, self.message, self.result])

    # -- event handlers

    def drawn(self, by: str, target: int) -> str:
        return map_html(*with_target(*stored(), target), by) if by in VALUES and target in TARGETS else ""

    def run(self, c: Any, rate: Any, target: Any) -> Iterator[WorkState]:
        return self.stops.states(lambda stop: self._work(c, rate, target, stop))

    def _work(self, c: Any, rate: Any, target: Any, stop: threading.Event) -> Generator[tuple[str, str]]:
        plan, found = with_target(stored()[0], [], target)
        total = len(plan.races)
        yield progress(0, total, "races"), ""
        try:
            for one in results(plan, c, rate):
                found.append(one)
                self.service.hold(one.traces)
                yield progress(len(found), total, "races"), race_html(found)
                if stop.is_set():
                    break
        except SpecScopeError as error:
            yield alert(error), race_html(found)
            return
        ended = f"Stopped after {len(found)} of {total} races." if len(found) < total else f"{total} races."
        yield note(f"c = {c}, acceptance {rate}: {ended}"), race_html(found)


@cache
def stored() -> tuple[MapPlan, list[Result]]:
    """Return plan and results of the finished map: the JSON of `specscope map`."""
    return given_back(json.loads(FILE.read_text(encoding="utf-8")))
