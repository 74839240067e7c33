"""The viewer's files, the template of a report, and that of all other pages in one file."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "assets" / "viewer"
_ORDER = (
    "kinds.js",
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
    "long.js",
    "pins.js",
    "gantt.js",
    "insets.js",
    "alignedpart.js",
    "aligned.js",
    "poolwords.js",
    "pool.js",
    "batch.js",
    "layers.js",
    "lengths.js",
    "counts.js",
    "best.js",
    "calibration.js",
    "audit.js",
    "kv.js",
    "ngrams.js",
    "fan.js",
    "forecasts.js",
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


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return scripts in order; one without a place is an inset, shown after the others."""
    after = _ORDER.index("pointer.js")
    return (*_ORDER[:after], *sorted({*names} - {*_ORDER}), *_ORDER[after:])


SCRIPTS = ordered(path.name for path in FOLDER.glob("*.js"))
"""The parts of the viewer's script; each uses only names of the parts before it while loading."""


@cache
def viewer_script() -> str:
    """Return the viewer as one script; it defines window.SpecScope and nothing else."""
    parts = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f'(function () {{\n"use strict";\n{parts}\n}})();\n'


@cache
def viewer_style() -> str:
    return (FOLDER / "viewer.css").read_text(encoding="utf-8")


@cache
def report_template() -> str:
    return (FOLDER / "report.html").read_text(encoding="utf-8")


def file_page(title: str, body: str, style: str, *scripts: str, kind: str = "") -> str:
    """Return a page in one file that requests nothing.

    `title` is plain text, `body` HTML, `kind` the class of the body element. The first script runs
    before the page is drawn, the others at its end.
    """
    first, *last = (f"<script>{script}</script>" for script in scripts) if scripts else ("",)
    allowed = "style-src 'unsafe-inline'; img-src data: blob:" + "; script-src 'unsafe-inline'" * bool(
        scripts
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {allowed}">'
        f'<title>{escape(title)}</title><style>{_FILE_STYLE}{style}</style>{first}</head><body class="{kind}">'
        f"<main><h1>{escape(title)}</h1>{body}</main>{''.join(last)}</body></html>\n"
    )


_FILE_STYLE = """
html { color-scheme: light dark; }
body { margin: 0; padding: 24px; background: light-dark(#ffffff, #0b1120); color: light-dark(#1d2433, #e6e9f0); }
main { max-width: 1340px; margin: 0 auto; }
h1 { font: 700 22px/1.25 system-ui, sans-serif; }
"""


@cache
def page_asset(name: str) -> str:
    return (FOLDER.parent / name).read_text(encoding="utf-8")


@cache
def plotly_script() -> str:
    """Return plotly.js as plotly.py ships it; it defines window.Plotly."""
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()
