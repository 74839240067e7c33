"""List stored runs: id, time, method, models, speed and speed-up; or show some as one set."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specscope.app.cli import common, options
from specscope.engine.errors import UsageError, shown
from specscope.engine.methods import METHODS
from specscope.engine.types import check_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.traces.database.store import Summary

NAME = 20
"""Most characters of a name in the list; a run of another program has its title."""
RUNS: options.Options = {
    "query": ({"nargs": "?", "default": ""}, "TEXT", "part of an id, method, prompt or output (all)"),
    "--set": (
        {"nargs": "+", "action": "append"},
        "RUN",
        "runs, or sets of imported files, as one thing; repeat it to compare sets",
    ),
    "--delete": ({"nargs": "+"}, "RUN", "delete runs, or all runs of sets, after a question"),
    "--limit": (20, "N", "list at most N runs (20)"),
    "--yes": (False, "", "delete without a question"),
}
OPTIONS = (RUNS, options.DATABASE, options.JSON)


def run(args: argparse.Namespace) -> int:
    if args.query and (args.set or args.delete):
        raise UsageError(f"{shown(args.query)} searches the list; with --set or --delete name runs only")
    if args.delete:
        return _delete(args)
    if args.set:
        return _sets(args)
    check_range("--limit", args.limit, 1, 1000)
    with common.open_store(args) as store:
        found, total = store.runs(args.query, limit=args.limit)
    rows = [_row(one) for one in found]
    return common.answer(args, {"runs": rows, "total": total}, _lines(rows, total))


def _delete(args: argparse.Namespace) -> int:
    with common.open_store(args) as store:
        ids = store.named(args.delete)
        what = f"these {len(ids):,} runs" if len(ids) > 1 else f"run {ids[0]}"
        if not args.yes and not common.confirmed(f"Delete {what} and their traces? This cannot be undone."):
            raise UsageError(f"nothing was deleted: answer y, or give --yes to delete {what}")
        count = store.delete(ids)
    return common.answer(args, {"deleted": ids}, [f"{count} run{'s' * (count != 1)} deleted"])


def _sets(args: argparse.Namespace) -> int:
    from specscope.traces.export.sets import lines
    from specscope.traces.sets.compared import sets_of
    from specscope.traces.sets.members import members_of

    with common.open_readonly(args, args.set[0]) as store, common.Status("reading the runs"):
        found = sets_of([list(members_of(store.outlines(names))) for names in args.set])
    return common.answer(args, dict(found), lines(found))


def _lines(rows: Sequence[dict[str, Any]], total: int) -> Iterator[str]:
    wide = max([14, *(len(row["run_id"]) + 2 for row in rows)])  # an imported run has its file's id
    yield f"{'run':{wide}}{'UTC':18}{'method':{NAME + 1}}{'tokens':>7}{'tokens/s':>10}{'speed-up':>10}  models and clock"
    for row in rows:
        speed = f"{row['tokens_per_second']:.1f}" if row["tokens_per_second"] else "-"
        ratio = f"{row['speedup']:.2f}×" if row["speedup"] else "-"
        tokens = "-" if row["tokens"] is None else row["tokens"]
        where = " · ".join(filter(None, [row["models"], row["clock"], row["status"].replace("done", "")]))
        when = row["created"][:16].replace("T", " ")
        name = row["method"] if row["method"] in METHODS else row["title"][:NAME]
        yield f"{row['run_id']:{wide}}{when:18}{name:{NAME + 1}}{tokens:>7}{speed:>10}{ratio:>10}  {where}"
    yield f"{len(rows)} of {total} runs"


def _row(one: Summary) -> dict[str, Any]:
    from specscope.traces.facts.settings import models_text

    header = one.header
    return {
        "run_id": header.run_id,
        "created": header.created,
        "method": header.method,
        "title": header.title,
        "models": models_text(header),
        "clock": header.clock,
        "group": header.group,
        "tokens": one.tokens,
        "tokens_per_second": one.tokens_per_second,
        "speedup": one.speedup,
        "status": one.status,
        "prompt": str(header.prompts[0])[:200] if header.prompts else "",
    }
