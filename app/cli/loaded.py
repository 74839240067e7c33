"""The table and the chart that `specscope load` makes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from app.loaded import COLUMNS, TITLES, verdicts
from engine.training.heads.plot import Line, Panel, draw

if TYPE_CHECKING:
    from collections.abc import Mapping

STYLE = """
html { color-scheme: light dark; }
body { margin: 0 auto; padding: 24px 16px 64px; max-width: 1080px; font: 15px/1.5 system-ui, sans-serif;
  background: light-dark(#ffffff, #0b1120); color: light-dark(#1d2433, #e6e9f0); }
h1 { margin: 0 0 16px; font: 700 24px/1.25 system-ui, sans-serif; }
p { margin: 4px 0; }
div { overflow-x: auto; margin: 0 0 16px; }
svg { max-width: 100%; min-width: 720px; height: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid light-dark(#e2e6ee, #25304a); }
th:first-child { text-align: left; }
"""
"""The page of a load, in the colours of the other pages."""


def print_load(result: Mapping[str, Any]) -> None:
    """Print a row per method and batch size, and where each method stops paying."""
    limits = result["limits"]
    print(f"{result['models']} · {result['requests']} requests · {result['clock']}")
    print(f"{'method':20}{'batch':>6}" + "".join(f"{title:>11}" for title, _, _ in COLUMNS))
    for key, method in result["methods"].items():
        for batch, row in method["batches"].items():
            print(f"{key:20}{batch:>6}" + "".join(_cell(row[name], form) for _, name, form in COLUMNS))
    for line in verdicts(result):
        print(line)
    for key, reason in result["left_out"].items():
        print(f"{key:20}left out: {reason}")
    print(
        f"good: first token within {limits['ttft_ms']:g} ms, further tokens {limits['tpot_ms']:g} ms in the mean"
    )
    print("busy tok/s: tokens by the time in which a request waits or is served")
    if result["warning"]:
        print(result["warning"])


def chart(result: Mapping[str, Any]) -> str:
    """Return an SVG chart by batch size: throughput, goodput and the two latencies."""
    clock, panels = result["clock"], list[Panel]()
    for name, title in TITLES:
        shown = title.format(clock=clock)
        lines = [
            Line(
                key,
                [
                    (int(batch), row[name])
                    for batch, row in method["batches"].items()
                    if row[name] is not None
                ],
            )
            for key, method in result["methods"].items()
        ]
        panels.append(Panel(shown, "batch size", [line for line in lines if line.points]))
    return draw(panels, columns=2)


def page(result: Mapping[str, Any]) -> str:
    """Return chart and table as a page of its own, which loads nothing."""
    head = "".join(f"<th>{title}</th>" for title in ("method", "batch", *(title for title, _, _ in COLUMNS)))
    rows = "".join(
        f"<tr><th>{escape(key)}</th><td>{batch}</td>"
        + "".join(f"<td>{_cell(row[name], form).strip()}</td>" for _, name, form in COLUMNS)
        + "</tr>"
        for key, method in result["methods"].items()
        for batch, row in method["batches"].items()
    )
    notes = "".join(f"<p>{escape(line)}</p>" for line in verdicts(result))
    title = escape(f"{result['models']} · {result['requests']} requests · {result['clock']}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>"
        f'<div tabindex="0" role="region" aria-label="Charts">{chart(result)}</div>{notes}'
        f'<div tabindex="0" role="region" aria-label="Figures"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></body></html>\n"
    )


def _cell(value: float | None, form: str) -> str:
    return f"{'-' if value is None else format(value, form):>11}"
