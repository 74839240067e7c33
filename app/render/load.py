"""Requests under load as HTML: progress, verdicts, charts by batch size, table with links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.loaded import COLUMNS, TITLES, verdicts
from app.render import charts
from app.render.html import badge, table, text
from app.render.lab import STYLES
from app.routes import run_address
from engine.methods import METHODS
from traces.requests import requests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.runs import LiveRun
    from app.tabs.experiments import LoadCell, LoadPlan


def progress(plan: LoadPlan, done: int, cell: LoadCell | None = None, run: LiveRun | None = None) -> str:
    total = len(plan.cells)
    words = [f"{done} of {total} runs"]
    if cell is not None and run is not None:
        words.append(f"{METHODS[cell.method].title}, batch {cell.batch}: {_state(plan, run)}")
    return (
        f'<p class="app-note" role="status" data-done="{done}" data-total="{total}">'
        f'<progress max="{total}" value="{done}" aria-label="runs"></progress> {text(" · ".join(words))}</p>'
    )


def _state(plan: LoadPlan, run: LiveRun) -> str:
    """Return what a run does: how many of its requests got their first token, once it runs."""
    if run.state != "running" or (trace := run.trace()) is None:
        return run.state
    begun = sum(one.ttft is not None for one in requests(trace))
    return f"{begun} of {len(plan.arrivals)} requests have their first token"


def shown(result: Mapping[str, Any], *, links: bool = True) -> str:
    """Return verdicts, charts and table of the runs that are done; see `app.loaded.result_of`."""
    facts = f"{result['requests']} requests · good: first token within {result['limits']['ttft_ms']:g} ms, further tokens {result['limits']['tpot_ms']:g} ms in the mean"
    lines = "".join(f"<li>{text(_titled(line))}</li>" for line in verdicts(result))
    warning = f'<p class="app-note app-warning">{text(result["warning"])}</p>' if result["warning"] else ""
    return (
        f'<p class="app-note">{badge(result["clock"])} {text(facts)}</p>{warning}'
        f"{lines and f'<ul class=app-verdicts>{lines}</ul>'}{_charts(result)}{_table(result, links=links)}"
    )


def _titled(line: str) -> str:
    key, _, rest = line.partition(" ")
    return f"{METHODS[key].title} {rest}"


def _charts(result: Mapping[str, Any]) -> str:
    sizes = sorted({int(batch) for method in result["methods"].values() for batch in method["batches"]})
    if len(sizes) < 2:
        return ""
    found = list[str]()
    for name, title in TITLES:
        lines = list[Any]()
        for i, (key, method) in enumerate(result["methods"].items()):
            points = [(int(b), row[name]) for b, row in method["batches"].items() if row[name] is not None]
            x, y = [b for b, _ in points], [value for _, value in points]
            style = STYLES[i % len(STYLES)]
            lines.append(charts.line(style, METHODS[key].title, x, y, mode="lines+markers"))
        heading = title.format(clock="virtual" if result["virtual"] else "measured")
        axes = {
            "xaxis": {
                "title": {"text": "batch size"},
                "type": "log",
                "tickvals": sizes,
                "ticktext": list(map(str, sizes)),
            },
            "yaxis": {"rangemode": "tozero"},
        }
        drawn = charts.chart(lines, f"{heading} by batch size", 230, showlegend=not found, **axes)
        found.append(f"<figure><figcaption>{text(heading)}</figcaption>{drawn}</figure>")
    return f'<div class="app-load-charts">{"".join(found)}</div>'


def _table(result: Mapping[str, Any], *, links: bool) -> str:
    def name(key: str, run: str) -> str:
        title = text(METHODS[key].title)
        return (
            f'<a href="{run_address([run])}" title="open this run\'s timeline">{title}</a>'
            if links
            else title
        )

    rows = [
        [
            name(key, row["run"]),
            str(batch),
            *(text("–" if row[column] is None else format(row[column], form)) for _, column, form in COLUMNS),
        ]
        for key, method in result["methods"].items()
        for batch, row in method["batches"].items()
    ]
    return table(["method", "batch", *(title for title, _, _ in COLUMNS)], rows, "Figures by batch size")
