"""Write a stored run as JSONL, CSV, a Perfetto trace or a profile of Model Optimizer."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import IO, Any

from specscope.app.cli import common, options
from specscope.engine.files import replacing
from specscope.engine.trace.jsonl import write_jsonl
from specscope.engine.trace.trace import Trace

FORMATS = ("jsonl", "csv", "perfetto", "modelopt")
TABLES = ("tokens", "decisions", "rounds", "copies", "spans", "windows", "figures")
EXPORT: options.Options = {
    "run_id": (str, "RUN", "id of a stored run"),
    "--format": ({"choices": FORMATS, "default": "jsonl"}, "", "(jsonl)"),
    "--table": ({"choices": TABLES}, "", "table of the CSV (tokens; windows of an engine's log)"),
    "-o --output": (Path, "F", "file to write (standard output)"),
}
OPTIONS = (EXPORT, options.DATABASE, options.JSON)


def run(args: argparse.Namespace) -> int:
    common.check_output(args.output)
    trace = common.load_runs(args, [args.run_id])[args.run_id]
    if args.output is None:
        write(trace, args.format, args.table, sys.stdout)
        return 0
    with replacing(args.output) as file:
        write(trace, args.format, args.table, file)
    size = args.output.stat().st_size
    facts = {"file": str(args.output), "bytes": size, "format": args.format}
    return common.answer(args, facts, [f"{args.output}: {size} bytes"])


def write(trace: Trace, form: str, table: Any, file: IO[str]) -> None:
    from specscope.traces.export.perfetto import write_perfetto
    from specscope.traces.export.tables import usual_table, write_csv
    from specscope.traces.imports.modelopt import profile_of

    match form:
        case "csv":
            write_csv(trace, table or usual_table(trace), file)
        case "perfetto":
            write_perfetto(trace, file)
        case "modelopt":
            json.dump(profile_of(trace), file, indent=2, allow_nan=False)
            file.write("\n")
        case _:
            write_jsonl(trace, file)
