"""Small pieces of HTML, all text escaped by `text`, and charts that assets/charts.js draws."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from time import monotonic_ns
from typing import Any
from urllib.parse import quote

from specscope.engine.trace.events import Header
from specscope.traces.export.assets import file_page, page_asset, plotly_script
from specscope.traces.facts.settings import config_text, drafter_text
from specscope.traces.view.figures import LOSSY


def text(value: Any) -> str:
    """Return a value as HTML text; lone surrogates become question marks."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def run_address(runs: Sequence[str], part: int | None = None) -> str:
    """Return the address of stored runs, or of a sequence or window of the first one."""
    at = "" if part is None else f"#sequence=0.{part}"
    return f"/?run={','.join(map(quote, runs))}{at}"


def badge(value: Any, kind: str = "", title: str = "") -> str:
    """Return a small rounded label; `kind` is good, warn or bad."""
    classes = " ".join(filter(None, ("ss-badge", kind and f"ss-{kind}")))
    hint = f' title="{text(title)}"' if title else ""
    return f'<span class="{classes}"{hint}>{text(value)}</span>'


def alert(message: str | Exception) -> str:
    """Return an error message that screen readers announce; empty without a message.

    If an error names its control (`FormError.where`), `errors.js` leads there, each time anew.
    """
    where = getattr(message, "where", "")
    place = f' data-at="{text(where)}" data-time="{monotonic_ns()}"' if where else ""
    return f'<p class="app-alert" role="alert"{place}>{text(message)}</p>' if str(message) else ""


def note(message: str) -> str:
    """Return a status line; empty without a message."""
    return f'<p class="app-note" role="status">{text(message)}</p>' if message else ""


def clock(runtime: str, profile: str | None, pair: str | None = None) -> str:
    """Return the text of the badge for the source of times, as in `Header.clock`."""
    if not profile:
        return f"measured · {runtime}"
    return " · ".join(filter(None, ("virtual", profile, pair)))


def lossy(header: Header) -> str:
    """Return the badge of a lossy run; empty for a lossless one."""
    return "" if header.lossless else badge("lossy", "warn", LOSSY)


def drafter(header: Header) -> str:
    """Return the badge of a drafter that is the target in fewer bits; empty for another one."""
    name = drafter_text(header)
    return badge(f"drafter {name}", title="The target's own weights in fewer bits.") if name else ""


def name_of(header: Header) -> str:
    """Return the title of a run's method, with the settings that differ from the usual ones."""
    config = config_text(header.method, header.config)
    return f"{header.title} · {config}" if config else header.title


def scrolling(label: str) -> str:
    """Return the opening tag of a box that scrolls sideways, also by keyboard."""
    return f'<div class="app-scroll" tabindex="0" role="group" aria-label="{text(label)}">'


def table(head: list[str], rows: list[list[str]], label: str) -> str:
    """Return a table of HTML cells, without a heading row if all headings are empty."""
    top = "".join(f'<th scope="col">{text(h)}</th>' for h in head) if any(head) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'{scrolling(label)}<table class="app-table" aria-label="{text(label)}">'
        f"{top and f'<thead><tr>{top}</tr></thead>'}<tbody>{body}</tbody></table></div>"
    )


STYLES = (
    ("#0072b2", "#56b4e9", "solid"),
    ("#b25a00", "#e69f00", "dash"),
    ("#008060", "#35c79a", "dot"),
    ("#8f3f71", "#cc79a7", "dashdot"),
    ("#4d4d4d", "#b3b3b3", "longdash"),
)
"""Colour on light and on dark ground, and dashes, of the lines of a chart."""
COLOURS = dict(zip(("speculative", "pearl", "dsi"), STYLES, strict=False))


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


def figure(curves: Sequence[Any], label: str, height: int, **layout: Any) -> str:
    """Return a chart, which `scripts` or the page's script draws; `label` is for screen readers."""
    from plotly.graph_objects import Figure, Layout

    margin = {"l": 48, "r": 16, "t": 8, "b": 40}
    legend = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
    drawn = Figure(curves, Layout(template="none", height=height, margin=margin, legend=legend, **layout))
    return (
        f'<div class="app-figure" role="img" aria-label="{text(label)}" style="height:{height}px" '
        f'data-figure="{text(drawn.to_json())}"></div>'
    )


def app_page(title: str, body: str, *, drawn: bool = False) -> str:
    """Return a page in one file in the playground's style, which follows the system's theme.

    `title` is plain text, `body` HTML; `drawn` says that it has charts of `figure`.
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
