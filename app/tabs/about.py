"""The About tab."""

from __future__ import annotations

from importlib.metadata import version

import gradio as gr

from app.render.about import about_page
from app.tabs.wiring import QUIET
from engine.environment import environment

PACKAGES = ("gradio", "plotly", "sqlmodel")


def build_about(tab: gr.Tab) -> None:
    """Lay out the tab, which is filled when it is opened: to name the GPUs, torch is imported."""
    page = gr.HTML(apply_default_css=False, elem_id="about")
    tab.select(_page, None, page, **QUIET)


def _page() -> str:
    return about_page(environment() | {name: version(name) for name in PACKAGES})
