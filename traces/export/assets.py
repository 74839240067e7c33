"""The viewer's files: one script, one style sheet, and the template of a report."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "assets" / "viewer"
SCRIPTS = (
    "packed.js",
    "model.js",
    "dom.js",
    "sources.js",
    "card.js",
    "large.js",
    "trees.js",
    "pages.js",
    "tokens.js",
    "verdict.js",
    "columns.js",
    "geometry.js",
    "hatches.js",
    "raster.js",
    "paint.js",
    "cards.js",
    "minimap.js",
    "tracks.js",
    "windows.js",
    "pins.js",
    "gantt.js",
    "insets.js",
    "alignedpart.js",
    "aligned.js",
    "poolwords.js",
    "pool.js",
    "batch.js",
    "layers.js",
    "kv.js",
    "ngrams.js",
    "pointer.js",
    "live.js",
    "flows.js",
    "range.js",
    "search.js",
    "link.js",
    "replay.js",
    "tables.js",
    "keys.js",
    "viewer.js",
    "steps.js",
)
"""The parts of the viewer's script; each uses only names of the parts before it while loading."""


@cache
def viewer_script() -> str:
    """Return the viewer as one script; it defines window.SpecScope and nothing else."""
    parts = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f'(function () {{\n"use strict";\n{parts}\n}})();\n'


@cache
def viewer_style() -> str:
    """Return the viewer's style sheet."""
    return (FOLDER / "viewer.css").read_text(encoding="utf-8")


@cache
def report_template() -> str:
    """Return the page of a report, with the names of its parts in double braces."""
    return (FOLDER / "report.html").read_text(encoding="utf-8")


@cache
def page_asset(name: str) -> str:
    """Return a script or a style sheet of the playground's page."""
    return (FOLDER.parent / name).read_text(encoding="utf-8")


@cache
def plotly_script() -> str:
    """Return plotly.js as plotly.py ships it; it defines window.Plotly."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()
