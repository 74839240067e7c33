"""Shared by the tabs: settings of events, Stop buttons of long work, the viewer, the first race.

The viewer's value names runs; `app.js` fetches their document.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial, wraps
from typing import Any, NamedTuple

import gradio as gr

from specscope.app.render.html import alert
from specscope.engine.errors import SpecScopeError

Update = dict[Any, Any]
"""New values by component; other components stay unchanged."""
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Settings of an event: no spinner, no public endpoint."""


SMALL: dict[str, Any] = {"size": "sm", "min_width": 0}
CHARTS = "SpecScopeApp.charts(element, watch);"
plain_html = partial(gr.HTML, apply_default_css=False)
"""HTML without Gradio's styles for text, which draw borders around every table."""


def build_message(elem_id: str) -> gr.HTML:
    """Return the place of a tab's messages; an error leads to its control (`assets/errors.js`)."""
    return plain_html(elem_id=elem_id, js_on_load="SpecScopeErrors.watch(element, watch);")


class WorkState(NamedTuple):
    """What the page shows of long work."""

    name: str
    """Of the work, which a Stop button ends."""
    message: str
    result: str


class Stops:
    """The events that end the work in progress, by the name of the work, which its page has."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}

    def states(self, work: Callable[[threading.Event], Generator[tuple[str, str]]]) -> Iterator[WorkState]:
        """Yield what the page shows of work, from its (message, result); an error is an alert."""
        name, stop = uuid.uuid4().hex, threading.Event()
        self._events[name] = stop
        try:
            with closing(work(stop)) as steps:
                for message, result in steps:
                    yield WorkState(name, message, result)
        except SpecScopeError as error:
            yield WorkState(name, alert(error), "")
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
        run: Callable[..., Iterator[WorkState]],
        given: list[gr.components.Component],
        shown: list[gr.components.Component],
    ) -> None:
        """Let `start` run the work and `stop`, which is off until then, end it.

        `shown` has the places of the values of a State.
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
    script = "SpecScopeApp.viewer(element, props, watch, trigger, 'advised');"
    named = {"elem_id": elem_id, "elem_classes": "app-viewer"}
    return plain_html(viewed(()), html_template=TEMPLATE, js_on_load=script, **named)


def build_hidden(elem_id: str, script: str) -> gr.HTML:
    """Return an element that nobody sees, for a script of the page."""
    hidden = "<span hidden></span>"
    return plain_html("", html_template=hidden, js_on_load=script, elem_id=elem_id)


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
    """Lay out the race; `demo.js` fetches its document (see `specscope.app.shipped.demo`)."""
    script = "SpecScopeDemo.mount(element, SpecScopeAddress.later());"
    plain_html("", html_template=DEMO, js_on_load=script, elem_id="demo")
