"""The table and the chart that `specscope load` makes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from engine.methods import BASELINE
from engine.training.heads.plot import Line, Panel, draw
from traces.requests import figures, load_of, stops_paying

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.trace.trace import Trace

COLUMNS = (
    ("tokens/s", "tokens_per_second", ".1f"),
    ("busy tok/s", "busy_tokens_per_second", ".1f"),
    ("TTFT ms", "ttft_ms", ".1f"),
    ("p95", "ttft_p95_ms", ".1f"),
    ("ITL ms", "itl_ms", ".2f"),
    ("p95", "itl_p95_ms", ".2f"),
    ("good", "good_share", ".0%"),
    ("goodput/s", "goodput", ".3g"),
)
"""Title, figure and form of each column."""


def result_of(
    cells: Mapping[str, Mapping[int, Trace]],
    left_out: Mapping[str, str],
    ttft_ms: float,
    itl_ms: float,
    warning: str,
) -> dict[str, Any]:
    """Return the JSON object of the command.

    Args:
        cells: The runs by method and batch size, at least the baseline's first one.
        left_out: Why a method was not run.
        ttft_ms: Limit of a good request's time to first token.
        itl_ms: Limit of its mean time per further token.
        warning: A sentence about the machine or the run; may be empty.
    """
    known = {
        key: {batch: figures(trace, ttft_ms, itl_ms) for batch, trace in runs.items()}
        for key, runs in cells.items()
        if runs
    }
    first = next(iter(cells[BASELINE].values()))
    load, header = load_of(first.header), first.header
    assert load is not None, "every run of this command has a load"
    return {
        "clock": header.clock,
        "virtual": header.virtual,
        "requests": len(load.arrivals),
        "arrivals": [time / 1e9 for time in load.arrivals],
        "chunk": load.chunk,
        "limits": {"ttft_ms": ttft_ms, "itl_ms": itl_ms},
        "methods": {
            key: {
                "config": cells[key][next(iter(runs))].header.config,
                "lossless": cells[key][next(iter(runs))].header.lossless,
                "stops_paying_at": None if key == BASELINE else stops_paying(runs, known[BASELINE]),
                "batches": {
                    str(batch): {"run": cells[key][batch].header.run_id, **row} for batch, row in runs.items()
                },
            }
            for key, runs in known.items()
        },
        "left_out": dict(left_out),
        "warning": warning or None,
    }


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
    print(f"{result['requests']} requests · {result['clock']}")
    print(f"{'method':20}{'batch':>6}" + "".join(f"{title:>11}" for title, _, _ in COLUMNS))
    for key, method in result["methods"].items():
        for batch, row in method["batches"].items():
            print(f"{key:20}{batch:>6}" + "".join(_cell(row[name], form) for _, name, form in COLUMNS))
    for line in verdicts(result):
        print(line)
    for key, reason in result["left_out"].items():
        print(f"{key:20}left out: {reason}")
    print(
        f"good: first token within {limits['ttft_ms']:g} ms, further tokens {limits['itl_ms']:g} ms in the mean"
    )
    print("busy tok/s: tokens by the time in which a request waits or is served")
    if result["warning"]:
        print(result["warning"])


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each method: where its throughput falls below plain decoding's."""
    lines = list[str]()
    for key, method in result["methods"].items():
        at, batches = method["stops_paying_at"], list(method["batches"])
        if key != BASELINE and at is None:
            lines.append(f"{key} pays at every batch size measured, up to {batches[-1]}")
        elif key != BASELINE:
            lines.append(f"{key} stops paying at batch size {at}: plain decoding has more busy tok/s there")
    return lines


def chart(result: Mapping[str, Any]) -> str:
    """Return an SVG chart by batch size: throughput, goodput and the two latencies."""
    clock, panels = result["clock"], list[Panel]()
    titles = (
        ("busy_tokens_per_second", f"tokens/s while busy, {clock}"),
        ("goodput", "goodput, requests/s"),
        ("ttft_p95_ms", "time to first token, p95 ms"),
        ("itl_p95_ms", "inter-token latency, p95 ms"),
    )
    for name, title in titles:
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
        panels.append(Panel(title, "batch size", [line for line in lines if line.points]))
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
    title = escape(f"{result['requests']} requests · {result['clock']}")
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
