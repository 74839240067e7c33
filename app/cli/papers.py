"""Compare the papers' tables and figures with computed ones, row by row.

Each row has the published number, ours, their difference, the kind of computation and its
assumption. Rows to which a parameter was fitted, and predictions that can hardly miss (easy), are
marked and not judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli import common
from app.cli.status import Status
from engine.files import replacing

if TYPE_CHECKING:
    from traces.papers.rows import Row

_WIDEST = 56


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--paper",
        action="append",
        default=[],
        metavar="KEY",
        help="only this one of pearl, dsi, easyspec, ems, parallelspec and outside; repeatable (all)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.html", help="write rows and charts to this HTML file"
    )
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the rows of the papers; return 1 if an exact row is not exact."""
    from traces.papers.summary import Summary, chosen

    papers = chosen(args.paper)
    if args.output is not None:
        common.check_output(args.output)
    rows: list[Row] = []
    with Status("computing the rows of the papers") as status:
        for i, paper in enumerate(papers, 1):
            status.text = f"computing the rows of {paper.title}, {i} of {len(papers)}"
            rows.extend(paper.rows())
    summary = Summary.of(rows)
    if args.output is not None:
        from traces.papers.page import render_page

        with replacing(args.output) as file:
            file.write(render_page(papers, rows))
    if args.json:
        common.print_json(
            {
                "rows": [row.to_dict() for row in rows],
                "inconsistencies": {paper.key: paper.inconsistencies for paper in papers},
                "summary": summary.to_dict(),
            }
        )
    elif args.output is not None:
        print(f"{args.output}: {summary.sentence()}")
    else:
        for paper in papers:
            _print(paper.title, [row for row in rows if row.paper == paper.key], paper.inconsistencies)
        print(f"\n{summary.sentence()}")
    return 0 if summary.exact_equal == summary.counts["exact"] else 1


def _print(title: str, rows: list[Row], inconsistencies: Sequence[str]) -> None:
    print(f"\n{title}\n{'=' * len(title)}")
    for item, group in groupby(rows, lambda row: row.item):
        own = list(group)
        print(f"\n{item:{_WIDEST}}{'published':>12}{'ours':>12}{'differs':>9}  kind")
        for row in own:
            name = row.row if len(row.row) < _WIDEST else f"{row.row[: _WIDEST - 2]}…"
            difference = "" if row.difference is None else f"{row.difference:+.1%}"
            mark = f" ({row.group})" if row.group in ("fitted", "easy") else ""
            print(
                f"{name:{_WIDEST}}{_number(row.published):>12}{_number(row.ours):>12}{difference:>9}  {row.kind}{mark}"
            )
        for text in dict.fromkeys(str(row.to_dict()["assumption"]) for row in own):
            if text:
                print(f"  {text}")
    print("\nThe paper contradicts itself:")
    for sentence in inconsistencies:
        print(f"  {sentence}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"
