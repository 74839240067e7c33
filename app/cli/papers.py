"""Compare the papers' tables and figures with computed ones, row by row.

A line for each method says what may be trusted. With --rows each row has the published number,
ours, their difference, the kind of computation and its assumption. Rows to which a parameter was
fitted, and predictions that can hardly miss (easy), are marked and not judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

from specscope.app.cli import common, options
from specscope.engine.errors import UsageError

if TYPE_CHECKING:
    from specscope.traces.papers.rows import Paper, PaperRow
    from specscope.traces.papers.summary import RowCounts

_WIDEST = 56
PAPER: options.Options = {
    "--paper": (
        [],
        "KEY",
        "only pearl, dsi, easyspec, ems, parallelspec, parallel, block or outside; repeatable (all)",
    )
}
ROWS: options.Options = {
    "--rows": (False, "", "print all rows below the summary"),
    "--forwards": (False, "", "print how far the roofline is from published times of forwards, by source"),
    "--winners": (
        False,
        "",
        "print whether advise names the winners of published clusters, by source (minutes)",
    ),
}
OPTIONS = (
    PAPER,
    ROWS,
    options.JSON,
    {"-o --output": (Path, "FILE.html", "write rows and charts to this HTML file")},
)


def run(args: argparse.Namespace) -> int:
    """Print the rows of the papers; return 1 if an exact row is not exact."""
    from specscope.traces.papers.summary import RowCounts, chosen

    if args.forwards or args.winners:
        return _sources(args)
    papers = chosen(args.paper)
    common.check_output(args.output)
    rows: list[PaperRow] = []
    with common.Status("computing the rows of the papers") as status:
        for i, paper in enumerate(papers, 1):
            status.text = f"computing the rows of {paper.title}, {i} of {len(papers)}"
            rows.extend(paper.rows())
    summary = RowCounts.of(rows)
    if args.output is not None:
        from specscope.traces.papers.page import render_page

        common.write_output(args.output, render_page(papers, rows))
        lines = iter([f"{args.output}: {summary.sentence()}"])
    else:
        lines = chain(_summary(papers, rows, summary), _lines(papers, rows) if args.rows else [])
    result = {
        "rows": [row.to_dict() for row in rows],
        "inconsistencies": {paper.key: paper.inconsistencies for paper in papers},
        "summary": summary.to_dict(),
    }
    common.answer(args, result, lines)
    return 0 if summary.exact_equal == summary.counts["exact"] else 1


def _sources(args: argparse.Namespace) -> int:
    option = "--forwards" if args.forwards else "--winners"
    if args.forwards and args.winners:
        raise UsageError("--forwards and --winners print a table each; leave one of them out")
    if args.paper or args.output is not None:
        raise UsageError(f"{option} prints one table of all sources; leave --paper and -o out")
    if args.forwards:
        from specscope.traces.papers.forwards import sources, table_lines

        found = sources()
        lines = table_lines(found, rows=args.rows)
    else:
        from specscope.traces.papers import winners

        found = list[winners.WinnerTable]()
        with common.Status("asking advise about published clusters") as status:
            for table in winners.winner_tables():
                found.append(table)
                status.text = f"asking advise about published clusters; done: {table.title}"
        lines = winners.table_lines(found, rows=args.rows)
    common.answer(args, {option.removeprefix("--"): [source.to_dict() for source in found]}, lines)
    return 0


def _summary(papers: Sequence[Paper], rows: Sequence[PaperRow], summary: RowCounts) -> Iterator[str]:
    from specscope.traces.papers.trust import trusts, unjudged

    yield f"{', '.join(paper.title for paper in papers)}"
    yield "What may be trusted, by method: predicted numbers of the papers, and ours"
    yield from (f"  {trust.line()}" for trust in trusts(rows))
    if others := unjudged(rows):
        yield f"  no number is predicted for {', '.join(others)}"
    yield f"{summary.sentence()}"
    yield from [summary.remark()] if summary.largest else []
    yield f"In {sum(len(paper.inconsistencies) for paper in papers)} places the papers contradict themselves."
    yield "--rows prints all of it, -o papers.html writes it with charts"


def _lines(papers: Sequence[Paper], rows: Sequence[PaperRow]) -> Iterator[str]:
    for paper in papers:
        yield f"\n{paper.title}\n{'=' * len(paper.title)}"
        yield from _paper([row for row in rows if row.paper == paper.key])
        yield "\nThe paper contradicts itself:"
        yield from (f"  {sentence}" for sentence in paper.inconsistencies)


def _paper(rows: Sequence[PaperRow]) -> Iterator[str]:
    for item, group in groupby(rows, lambda row: row.item):
        own = list(group)
        yield f"\n{item:{_WIDEST}}{'published':>12}{'ours':>12}{'differs':>9}  kind"
        for row in own:
            name = row.row if len(row.row) < _WIDEST else f"{row.row[: _WIDEST - 2]}…"
            difference = "" if row.difference is None else f"{row.difference:+.1%}"
            mark = f" ({row.group})" if row.group in ("fitted", "easy") else ""
            numbers = f"{_number(row.published):>12}{_number(row.ours):>12}{difference:>9}"
            yield f"{name:{_WIDEST}}{numbers}  {row.kind}{mark}"
        texts = dict.fromkeys(str(row.to_dict()["assumption"]) for row in own)
        yield from (f"  {text}" for text in texts if text)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
