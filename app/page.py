"""The page: a heading and three tabs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from app.tabs.about import build_about
from app.tabs.history import History, wanted_runs
from app.tabs.playground import Playground
from app.tabs.wiring import QUIET
from engine.errors import UsageError

if TYPE_CHECKING:
    from app.service import Service

TITLE = """
<header class="app-head">
  <h1>SpecScope</h1>
  <span>Speculative decoding, side by side: who drafts, who verifies, who waits.</span>
  <button type="button" class="ss-button app-theme" aria-label="Light or dark" title="Light or dark">◐</button>
</header>
"""


def build_page(service: Service) -> gr.Blocks:
    """Return the page over a service."""
    with gr.Blocks(title="SpecScope", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(TITLE, js_on_load="SpecScopeApp.head(element);", apply_default_css=False, elem_id="head")
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("Playground", id="playground"):
                Playground(service)
            with gr.Tab("History", id="history") as history_tab:
                history = History(service)
            with gr.Tab("About", id="about"):
                build_about()
        history_tab.select(history.refresh, history.view, history.listed, **QUIET)
        opened = [tabs, history.listing, history.detail, history.heading, history.viewer, history.message]

        def follow_link(request: gr.Request) -> Any:
            """Open what the address names."""
            try:
                runs = wanted_runs(request.query_params.get("run", ""))
            except UsageError:
                runs = []
            return {tabs: gr.update(selected="history"), **history.show(runs)} if runs else gr.skip()

        page.load(follow_link, None, opened, **QUIET)
    page.queue(max_size=64)
    return page
