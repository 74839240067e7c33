"""Store the runs of a file: SpecScope's own, or one of another engine."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from app.cli import common
from app.cli.status import Status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        metavar="F",
        help="a trace of `specscope export`, or a file of vLLM, SGLang, AIPerf, Model Optimizer or torch's profiler",
    )
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Store the runs; with `--json`, print a row for one run and a list for several."""
    from traces.imports.reading import read_traces
    from traces.metrics import measure

    with Status(f"reading {args.file}"):
        found = read_traces(args.file)
    with contextlib.closing(common.open_store(args)) as store, Status("storing the runs"):
        store.insert(*found.traces)
    rows = [{"run_id": t.header.run_id, "method": t.header.method, "status": t.status} for t in found.traces]
    if args.json:
        common.print_json(rows[0] if len(rows) == 1 else rows)
        return 0
    for trace in found.traces:
        tokens = measure(trace).tokens
        count = "unknown number of tokens" if tokens is None else f"{tokens} tokens"
        print(f"run {trace.header.run_id}: {trace.header.title}, {count}, {trace.status}")
    if found.skipped:
        noun = "request was" if found.skipped == 1 else "requests were"
        print(f"{found.skipped} {noun} left out: nothing about speculative decoding")
    return 0
