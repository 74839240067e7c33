"""The Lab tab: sweeps over draft length and acceptance rate on a virtual cluster."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.render.html import alert, note
from app.render.lab import heat_map, progress
from app.tabs.wiring import QUIET
from engine.errors import SpecScopeError, UsageError, shown
from engine.methods import METHODS
from engine.simulate.profile import Profile, profiles
from traces.lab import Cell, Sweep, fields_of, numbers, shares, sweep, sweepable

if TYPE_CHECKING:
    from app.service import Service

_ABOUT = (
    "Every cell is a run of the method's own code on a virtual cluster, with drafts that are right at a given rate: "
    "speed-up over plain decoding, the mean of the seeds ± half of their range. The best length of a row is framed; a "
    "cell opens its trace."
)


class Lab:
    """The tab's components and their event handlers."""

    def __init__(self, service: Callable[[], Service]) -> None:
        self.service = service
        self._stops: dict[str, threading.Event] = {}
        """What ends each sweep in progress, by its name."""
        html = partial(gr.HTML, apply_default_css=False)
        with gr.Column(elem_id="lab", elem_classes="app-card"):
            gr.HTML("<h2>Draft length against acceptance</h2>" + note(_ABOUT))
            with gr.Row(elem_classes="app-whatif", equal_height=True):
                keys = sweepable()
                self.method = gr.Dropdown(
                    [(METHODS[k].title, k) for k in keys], value=keys[0], label="Method"
                )
                self.profile = gr.Dropdown(
                    [(Profile.load(name).title, name) for name in profiles()],
                    value=profiles()[0],
                    label="Cluster",
                )
                self.values = gr.Textbox("1-8", label="Draft lengths", max_lines=1)
                self.rates = gr.Textbox("0.5, 0.6, 0.7, 0.8, 0.9", label="Acceptance rates", max_lines=1)
                self.tokens = gr.Number(64, precision=0, label="Tokens")
                self.seeds = gr.Number(2, precision=0, label="Seeds")
                self.start = gr.Button(
                    "Sweep", variant="primary", size="sm", min_width=0, elem_id="lab-start"
                )
                self.stop = gr.Button("Stop", size="sm", min_width=0, elem_id="lab-stop")
            self.message = html(elem_id="lab-message")
            self.map = html(elem_id="lab-map")
            self.name = gr.Textbox("", visible=False)
            """Name of the page's last sweep."""
        given = [self.method, self.profile, self.values, self.rates, self.tokens, self.seeds]
        self.start.click(self.run, given, [self.name, self.message, self.map], **QUIET)
        self.stop.click(self.end, self.name, None, **QUIET)

    def end(self, name: str) -> None:
        """Stop a sweep after the cell at work."""
        if name in self._stops:
            self._stops[name].set()

    def run(
        self, method: str, profile: str, values: str, rates: str, tokens: float | None, seeds: float | None
    ) -> Iterator[Any]:
        """Yield the sweep's name, the message and the heat map after every cell."""
        cells, stop, name = list[Cell](), threading.Event(), uuid.uuid4().hex
        self._stops[name] = stop
        try:
            if profile not in profiles():  # a path would name a file of the server
                raise UsageError(
                    f"there is no profile {shown(profile)}; choose one of {', '.join(profiles())}"
                )
            if method not in sweepable():
                raise UsageError(f"{shown(method)} has no sweep; choose one of {', '.join(sweepable())}")
            (field, *_) = fields_of(METHODS[method])
            plan = Sweep(
                method,
                field,
                numbers(str(values)),
                shares(str(rates)),
                profile,
                "",
                int(tokens or 0),
                int(seeds or 0),
            )
            plan.check()
            yield name, progress(plan, cells), heat_map(plan, cells)
            for cell in sweep(plan, stop):
                cells.append(cell)
                self.service().hold(cell.traces)
                yield name, progress(plan, cells), heat_map(plan, cells)
            ended = (
                f"Stopped after {len(cells)} of {len(plan.values) * len(plan.rates)} cells."
                if stop.is_set()
                else f"{len(cells)} cells."
            )
            yield name, note(ended), heat_map(plan, cells)
        except SpecScopeError as error:
            yield name, alert(str(error)), ""
        finally:
            del self._stops[name]
