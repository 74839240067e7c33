"""The About tab."""

from __future__ import annotations

from importlib.metadata import version

import gradio as gr

from app.render.about import about_page
from engine.environment import environment

PACKAGES = ("gradio", "plotly", "sqlmodel")


def build_about() -> None:
    """Lay out the tab."""
    facts = environment() | {name: version(name) for name in PACKAGES}
    gr.HTML(about_page(facts), apply_default_css=False, elem_id="about")
