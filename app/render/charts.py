"""Charts: Plotly figures as HTML, which assets/charts.js draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.render.html import text
from traces.export.assets import file_page, page_asset, plotly_script

if TYPE_CHECKING:
    from collections.abc import Sequence

COLOURS = {
    "speculative": ("#0072b2", "#56b4e9", "solid"),
    "pearl": ("#b25a00", "#e69f00", "dash"),
    "dsi": ("#008060", "#35c79a", "dot"),
}
"""Name of a curve -> its colour on light and on dark ground, and its dashes."""


def curve(name: str, title: str, x: Sequence[float], y: Sequence[float], **facts: Any) -> Any:
    return line(COLOURS[name], title, x, y, **facts)


def line(
    style: tuple[str, str, str], title: str, x: Sequence[float], y: Sequence[float], **facts: Any
) -> Any:
    """Return a line; `style` is its colour on light and on dark ground, and its dashes."""
    from plotly.graph_objects import Scatter

    light, dark, dash = style
    look = {"color": light, "dash": dash, "width": 2, **facts.pop("line", {})}
    facts = {"mode": "lines", **facts}
    return Scatter(name=title, x=x, y=y, line=look, meta={"dark": dark}, **facts)


def chart(curves: Sequence[Any], label: str, height: int, **layout: Any) -> str:
    """Return a chart, which `scripts` or the page's script draws; `label` is for screen readers."""
    from plotly.graph_objects import Figure, Layout

    margin = {"l": 48, "r": 16, "t": 8, "b": 40}
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    figure = Figure(curves, Layout(template="none", height=height, margin=margin, legend=legend, **layout))
    return (
        f'<div class="app-figure" role="img" aria-label="{text(label)}" style="height:{height}px" '
        f'data-figure="{text(figure.to_json())}"></div>'
    )


def app_page(title: str, body: str, *, drawn: bool = False) -> str:
    """Return a page in one file in the playground's style, which follows the system's theme.

    Args:
        title: Its title and heading, as plain text.
        body: Its content, as HTML.
        drawn: Whether the content has charts of `chart`, which scripts draw.
    """
    draw = (
        "const draw = () => SpecScopeCharts.draw(document.body, Plotly); draw(); "
        'new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });'
    )
    scripts = (plotly_script(), page_asset("charts.js"), draw) if drawn else ()
    style = page_asset("app.css") + _FILE_STYLE
    return file_page(title, body, style, _THEME, *scripts, kind="gradio-container")


_FILE_STYLE = "body { font: 14px system-ui, sans-serif; background: var(--app-card); color: var(--app-ink) } ol { padding: 0 }"
_THEME = (
    'const dark = matchMedia("(prefers-color-scheme: dark)"); '
    'const follow = () => document.documentElement.classList.toggle("dark", dark.matches); '
    'dark.addEventListener("change", follow); follow();'
)
