"""Store the runs of a file: SpecScope's own, or one of another engine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specscope.app.cli import common, options

if TYPE_CHECKING:
    from specscope.traces.imports.reading import Imports

SOURCES = (
    "a trace of `specscope export` or `specscope.record`, or what an engine or a bench gives: log, /metrics, answers, "
    "streams, profiles"
)

MOST_LISTED = 10
"""Runs of a file that have a line; all of them have one in JSON."""
SINCE = "an earlier text of the same /metrics: import what was counted between the two"
OPTIONS = ({"file": (Path, "F", SOURCES), "--since": (Path, "F", SINCE)}, options.DATABASE, options.JSON)


def run(args: argparse.Namespace) -> int:
    """Store the runs; with `--json`, print a row for one run and a list for several."""
    from specscope.traces.imports.reading import read_traces

    with common.Status(f"reading {args.file}"):
        found = read_traces(args.file, since=args.since)
    with common.open_store(args) as store, common.Status("storing the runs"):
        store.insert(*found.traces)
    rows = [
        {"run_id": t.header.run_id, "method": t.header.method, "status": t.status, "group": t.header.group}
        for t in found.traces
    ]
    return common.answer(args, rows[0] if len(rows) == 1 else rows, _lines(found))


def _lines(found: Imports) -> Iterator[str]:
    from specscope.traces.export.sets import lines
    from specscope.traces.facts.metrics import measure
    from specscope.traces.sets.compared import sets_of
    from specscope.traces.sets.members import members_of

    for trace in found.traces[:MOST_LISTED]:
        tokens = measure(trace).tokens
        count = "unknown number of tokens" if tokens is None else f"{tokens} tokens"
        yield f"run {trace.header.run_id}: {trace.header.title}, {count}, {trace.status}"
    if len(found.traces) > MOST_LISTED:
        yield f"… and {len(found.traces) - MOST_LISTED:,} more"
    yield from found.notes
    if found.set:
        yield f"as one set: specscope runs --set {found.set}"
        yield from lines(sets_of([list(members_of(found.traces))]))
