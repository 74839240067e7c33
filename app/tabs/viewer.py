"""The trace viewer as a component, whose value names runs, and the race that plays at first."""

from __future__ import annotations

import json
from collections.abc import Sequence

import gradio as gr

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
