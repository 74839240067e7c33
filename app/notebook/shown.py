"""What a notebook shows of runs: a line, a table of figures, and a page in a sandboxed frame.

The table is plain HTML, so it is there without scripts, and where frames are removed. All texts of
a run are escaped.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from app.render.html import table, text
from engine.trace.trace import Trace
from traces.export.assets import viewer_script, viewer_style
from traces.export.embedded import embedded
from traces.export.report import render_report
from traces.imported import origin
from traces.metrics import measure
from traces.view.figures import figure_rows, figure_texts

MOST_BYTES = 400_000
"""Of a frame, beside the viewer's script and styles."""
MOST_SPANS, LEAST_SPANS = 4000, 100
"""Spans of all runs that a frame draws at most; half as many where its bytes are too many."""


def number(value: float | None, form: str, unit: str = "") -> str:
    """Return a number as text; a dash for None."""
    return "–" if value is None else format(value, form) + unit


def output(line: str, head: Sequence[str], rows: Iterable[Sequence[Any]], *parts: str) -> str:
    """Return a line and a table of texts; `parts` are HTML."""
    cells = [[text(cell) for cell in row] for row in rows]
    return f"<p>{text(line)}</p>{table([*head], cells, line)}{''.join(parts)}"


def run_output(trace: Trace) -> str:
    """Return what a notebook shows of one run."""
    imported = origin(trace.header)
    texts = figure_texts(measure(trace), None, {}, imported.figures if imported else frozenset())
    rows = [[f["label"], texts[f["key"]]] for f in figure_rows() if f["main"] and texts[f["key"]] != "–"]
    return output(line_of(trace), ["figure", "value"], rows, viewer([trace]))


def line_of(trace: Trace) -> str:
    header = trace.header
    facts = [header.title, f"{len(trace.commits)} tokens", trace.status, header.clock]
    return " · ".join([*facts, f"run {header.run_id}"])


def viewer(traces: Sequence[Trace]) -> str:
    """Return the viewer of these runs in a frame; of long runs with their beginning only."""
    spans, total = MOST_SPANS, sum(len(trace.spans) for trace in traces)
    label = f"Timeline of {', '.join(trace.header.title for trace in traces)}"
    while spans > LEAST_SPANS:
        cut = total > spans
        page = render_report(traces, spans=spans if cut else None)
        frame = embedded(page, label, without="The timeline needs scripts; the figures are above it.")
        if len(frame) <= MOST_BYTES + script_bytes():
            return (_note(spans, total) if cut else "") + frame
        spans = min(spans, total) // 2
    return "<p>The timeline is too large for a notebook; write it with <code>specscope report</code>.</p>"


def _note(spans: int, total: int) -> str:
    part = f"The timeline has the first {spans:,} of {total:,} spans; the figures are those of whole runs."
    return f"<p>{part} A report has all spans.</p>"


@cache
def script_bytes() -> int:
    """Return the bytes of the viewer's script and styles in a frame."""
    return len(b64encode(gzip.compress((viewer_script() + viewer_style()).encode())))


def framed(page: str, label: str, height: int) -> str:
    """Return a page of the playground's style in a frame."""
    return embedded(page, label, without="This picture needs scripts; its figures are above.", height=height)
