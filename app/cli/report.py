"""Write stored runs as one self-contained HTML file: viewer, text and metrics."""

from __future__ import annotations

import argparse
from pathlib import Path

from specscope.app.cli import common, options
from specscope.engine.errors import UsageError

SET = (
    "show the runs, or the requests of imported files, as one set; draw those with most and least acceptance"
)
REPORT: options.Options = {
    "runs": ({"nargs": "+"}, "RUN", "id of a stored run"),
    "--set": (False, "", SET),
    "--compared": (False, "", "add the other runs of each run's comparison"),
    "-o --output": ({"type": Path, "required": True}, "F.html", "file to write"),
    "--redact-prompt": (False, "", "leave the prompt out"),
}
OPTIONS = (REPORT, options.DATABASE, options.JSON)


def run(args: argparse.Namespace) -> int:
    from specscope.traces.export.report import render_report, render_set

    common.check_output(args.output)
    if args.set and args.compared:
        raise UsageError(
            "--compared adds the runs of comparisons, which are no set; leave out --set or --compared"
        )
    if args.set:
        with common.open_readonly(args, args.runs) as store, common.Status("writing the report"):
            page = render_set(store, args.runs, redact_prompt=args.redact_prompt)
        size = common.write_output(args.output, page)
        facts = {"file": str(args.output), "bytes": size, "set": args.runs}
        return common.answer(args, facts, [f"{args.output}: one set, {size / 2**20:.1f} MiB"])
    with common.Status("writing the report"):
        traces = list(common.load_runs(args, args.runs, compared=args.compared).values())
        page = render_report(traces, redact_prompt=args.redact_prompt)
    size = common.write_output(args.output, page)
    facts = {"file": str(args.output), "bytes": size, "runs": [t.header.run_id for t in traces]}
    return common.answer(args, facts, [f"{args.output}: {len(traces)} runs, {size / 2**20:.1f} MiB"])
