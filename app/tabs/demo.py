"""The finished race that plays when the page opens. No model is loaded for it."""

from __future__ import annotations

import gradio as gr

TEMPLATE = (
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
        html_template=TEMPLATE,
        js_on_load="SpecScopeDemo.mount(element, SpecScopeAddress.later());",
        apply_default_css=False,
        elem_id="demo",
    )
