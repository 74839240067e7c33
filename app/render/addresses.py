"""The addresses of exports, reports and followed files on the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import IO
from urllib.parse import quote

from specscope.engine.trace.jsonl import write_jsonl
from specscope.engine.trace.trace import Trace
from specscope.traces.export.perfetto import write_perfetto
from specscope.traces.export.tables import usual_table, write_csv

PREFIX = "/specscope"
SET = "set:"
"""Before the names of runs that are shown as one set; no id has a colon."""
MAX_TURNS = 12
"""Most turns before the last one in a report."""
EXPORTS: dict[str, tuple[Callable[[Trace, IO[str]], None], str]] = {
    "trace.jsonl": (write_jsonl, "application/x-ndjson"),
    "tokens.csv": (lambda trace, file: write_csv(trace, usual_table(trace), file), "text/csv"),
    "perfetto.json": (write_perfetto, "application/json"),
}


def names_of(files: Sequence[str]) -> str:
    """Return the names of files as one text of an address."""
    return ",".join(quote(name, safe="") for name in files)


def follow_address(names: Sequence[str]) -> str:
    """Return the address of files that are followed; a comma in a name is encoded twice."""
    return f"/?follow={quote(names_of(names), safe=',')}"


def report_address(runs: Sequence[str], earlier: Sequence[Sequence[str]] = ()) -> str:
    turns = ";".join(",".join(map(quote, turn)) for turn in earlier[-MAX_TURNS:])
    more = f"&amp;earlier={turns}" if turns else ""
    return f"{PREFIX}/report.html?runs={','.join(map(quote, runs))}{more}"


def export_address(run: str, form: str) -> str:
    return f"{PREFIX}/export/{quote(run)}/{form}"
