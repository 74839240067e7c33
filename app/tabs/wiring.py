"""Shared by the tabs: settings of events, Stop buttons of long work, the viewer, the first race.

The viewer's value names runs; `app.js` fetches their document.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import gradio as gr

Update = dict[Any, Any]
"""New values by component; other components stay unchanged."""
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Settings of an event: no spinner, no public endpoint."""


class Stops:
    """The events that end the work in progress, by the name of the work, which its page has."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}

    @contextmanager
    def work(self) -> Iterator[tuple[str, threading.Event]]:
        name, stop = uuid.uuid4().hex, threading.Event()
        self._events[name] = stop
        try:
            yield name, stop
        finally:
            del self._events[name]

    def end(self, name: str) -> None:
        """End the work of a name: its run in progress within one forward; nothing if it is over."""
        if name in self._events:
            self._events[name].set()

    def connect(
        self,
        start: gr.Button,
        stop: gr.Button,
        run: Callable[..., Iterable[tuple[Any, ...]]],
        given: list[gr.components.Component],
        shown: list[gr.components.Component],
    ) -> None:
        """Let `start` run the work and `stop`, which is off until then, end it.

        `run` yields the values of `shown`; the first value is the work's name.
        """

        @wraps(run)
        def watched(*values: Any) -> Iterator[tuple[Any, ...]]:
            for state in run(*values):
                yield (*state, gr.update(interactive=True))

        off = "() => ({ __type__: 'update', interactive: false })"
        start.click(watched, given, [*shown, stop], **QUIET).then(None, None, stop, js=off, **QUIET)
        stop.click(self.end, shown[0], None, concurrency_limit=None, **QUIET)


TEMPLATE = '<div class="app-viewer-root"></div>'
"""Constant, so that Gradio never renders it again."""


def build_viewer(elem_id: str) -> gr.HTML:
    """Return an empty viewer; its event `advised` names the run that the user wants to start."""
    return gr.HTML(
        value=viewed(()),
        html_template=TEMPLATE,
        js_on_load="SpecScopeApp.viewer(element, props, watch, trigger, 'advised');",
        apply_default_css=False,
        elem_id=elem_id,
        elem_classes="app-viewer",
    )


def viewed(runs: Sequence[str], revision: int = 0, *, live: bool = False) -> str:
    """Return a value of the viewer; a new `revision` makes it fetch the same runs again."""
    return json.dumps({"runs": list(runs), "revision": revision, "live": live})


DEMO = (
    '<section class="app-demo app-card" aria-label="A finished race"><header><h2>A finished race: '
    '<span class="app-demo-prompt"></span></h2><button type="button" class="app-link app-demo-more">The whole '
    'timeline</button><button type="button" class="app-link app-demo-hide">Hide</button></header>'
    '<div class="app-demo-root"></div></section>'
)
"""Constant, so that Gradio never renders it again."""


def build_demo() -> None:
    """Lay out the race; `demo.js` fetches its document (see `app.demo`)."""
    gr.HTML(
        value="",
        html_template=DEMO,
        js_on_load="SpecScopeDemo.mount(element, SpecScopeAddress.later());",
        apply_default_css=False,
        elem_id="demo",
    )
