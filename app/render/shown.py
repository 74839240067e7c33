"""What a notebook shows of runs: a line, a table of figures, and a page in a sandboxed frame.

The table is plain HTML, so it is there without scripts, and where frames are removed. All texts of
a run are escaped.
"""

from __future__ import annotations

import gzip
from base64 import b64encode
from collections.abc import Sequence
from functools import cache

from specscope.app.render.html import text
from specscope.app.render.table import figures_table
from specscope.engine.trace.trace import Trace
from specscope.traces.export.assets import viewer_script, viewer_style
from specscope.traces.export.embedded import embedded
from specscope.traces.export.report import render_report
from specscope.traces.facts.imported import origin
from specscope.traces.facts.metrics import measure
from specscope.traces.view.figures import figure_rows, figure_texts

MOST_BYTES = 400_000
"""Of a frame, beside the viewer's script and styles."""
HEIGHTS = (640, 860)
"""Pixels of the frame of one run, and of several."""
_WITHOUT = "The timeline needs scripts; the figures are above it."
MOST_SPANS, LEAST_SPANS = 4000, 100
"""Spans of all runs that a frame draws at most; half as many where its bytes are too many."""


def output(line: str, figures: str, *parts: str) -> str:
    """Return a line of text above HTML: figures and other parts."""
    return f"<p>{text(line)}</p>{figures}{''.join(parts)}"


def folded(table: str) -> str:
    """Return a table that opens on a click."""
    return f"<details><summary>The figures as a table</summary>{table}</details>"


def run_output(trace: Trace) -> str:
    """Return what a notebook shows of one run."""
    imported = origin(trace.header)
    texts = figure_texts(measure(trace), None, {}, imported.figures if imported else frozenset())
    known = [(f["label"], texts[f["key"]]) for f in figure_rows() if f["main"] and texts[f["key"]] != "–"]
    labels, values = zip(*known, strict=True) if known else ((), ())
    return output(line_of(trace), figures_table(labels, [values]), viewer([trace]))


def line_of(trace: Trace) -> str:
    header = trace.header
    tokens = f"{len(trace.commits)} tokens" if trace.commits else ""
    facts = (header.title, tokens, trace.status, header.clock, f"run {header.run_id}")
    return " · ".join(filter(None, facts))


def viewer(traces: Sequence[Trace]) -> str:
    """Return the viewer of these runs in a frame; of long runs with their beginning only."""
    spans, total = MOST_SPANS, sum(len(trace.spans) for trace in traces)
    label = f"Timeline of {', '.join(trace.header.title for trace in traces)}"
    while spans > LEAST_SPANS:
        cut = total > spans
        page = render_report(traces, spans=spans if cut else None)
        frame = embedded(page, label, without=_WITHOUT, height=HEIGHTS[len(traces) > 1])
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


def framed(page: str, label: str, table: str, height: int) -> str:
    """Return a page of the playground's style in a frame, which has a table without scripts."""
    return embedded(page, label, without=table, height=height) + folded(table)
