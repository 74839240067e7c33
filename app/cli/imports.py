"""Store a run from a JSONL file."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from app.cli import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "file", type=Path, metavar="F", help="file written by `specscope export --format jsonl`"
    )
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Store the run."""
    from traces.export.jsonl import read_file

    trace = read_file(args.file)
    with contextlib.closing(common.open_store(args)) as store:
        store.insert(trace)
    if args.json:
        common.print_json(
            {"run_id": trace.header.run_id, "method": trace.header.method, "status": trace.status}
        )
    else:
        print(f"run {trace.header.run_id}: {trace.header.title}, {len(trace.commits)} tokens, {trace.status}")
    return 0
