"""The trace viewer as a component of the page: it is told which runs to show, and fetches their model itself."""

from __future__ import annotations

import json
from collections.abc import Sequence

import gradio as gr

TEMPLATE = '<div class="app-viewer-root"></div>'
"""Constant, so Gradio never renders it again."""


def build_viewer(elem_id: str) -> gr.HTML:
    """Return an empty viewer."""
    return gr.HTML(
        value=viewed(()),
        html_template=TEMPLATE,
        js_on_load="SpecScopeApp.viewer(element, props, watch);",
        apply_default_css=False,
        elem_id=elem_id,
        elem_classes="app-viewer",
    )


def viewed(runs: Sequence[str], revision: int = 0, *, live: bool = False) -> str:
    """Return the viewer's value.

    Args:
        runs: Tickets or run ids.
        revision: Another number makes it fetch the same runs again.
        live: Show the timeline only: the text is in the live panes.
    """
    return json.dumps({"runs": list(runs), "revision": revision, "live": live})
