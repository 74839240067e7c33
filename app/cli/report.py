"""Write stored runs as one self-contained HTML file: viewer, text and metrics."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from app.cli import common
from app.cli.status import Status
from engine.files import replacing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="id of a stored run")
    parser.add_argument("--compared", action="store_true", help="add the other runs of each run's comparison")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="F.html", help="file to write")
    parser.add_argument("--redact-prompt", action="store_true", help="leave the prompt out")
    common.add_database(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    from traces.export.report import render_report

    common.check_output(args.output)
    with contextlib.closing(common.open_stored(args, args.runs)) as store, Status("writing the report"):
        names = [n for name in args.runs for n in (store.group(name) if args.compared else [name])]
        traces = [store.load(name) for name in dict.fromkeys(names)]
        page = render_report(traces, redact_prompt=args.redact_prompt)
    with replacing(args.output) as file:
        file.write(page)
    size = args.output.stat().st_size
    if args.json:
        common.print_json(
            {"file": str(args.output), "bytes": size, "runs": [t.header.run_id for t in traces]}
        )
    else:
        print(f"{args.output}: {len(traces)} runs, {size / 2**20:.1f} MiB")
    return 0
