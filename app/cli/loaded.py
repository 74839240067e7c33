"""The table and the chart that `specscope load` makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.loaded import COLUMNS, TITLES, verdicts
from app.render.charts import app_page
from app.render.html import scrolling, table, text
from engine.plot import Line, Panel, draw

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    head = ["method", "batch", *(title for title, _, _ in COLUMNS)]
    rows = [
        [text(key), str(batch), *(_cell(row[name], form).strip() for _, name, form in COLUMNS)]
        for key, method in result["methods"].items()
        for batch, row in method["batches"].items()
    ]
    notes = "".join(f"<p>{text(line)}</p>" for line in verdicts(result))
    body = f"{scrolling('Charts')}{chart(result)}</div>{notes}{table(head, rows, 'Figures')}"
    return app_page(f"{result['models']} · {result['requests']} requests · {result['clock']}", body)


def _cell(value: float | None, form: str) -> str:
    return f"{'-' if value is None else format(value, form):>11}"
