"""Parts of the bench that print tables of their own, and the progress of all parts."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from app.cli import common
from app.cli.prompts import prompts_of
from engine.files import replacing

if TYPE_CHECKING:
    from app.bench.plan import Plan


@contextlib.contextmanager
def progress() -> Generator[Callable[[str], None]]:
    """Show progress on stderr; yield a `Note` (`app.bench.plan.Note`).

    Output that libraries print goes to stderr, too.
    """
    from tqdm import tqdm

    with contextlib.redirect_stdout(sys.stderr), tqdm(unit=" rounds", file=sys.stderr, leave=False) as bar:

        def note(text: str) -> None:
            if text:
                bar.set_description(text)
            else:
                bar.update()

        yield note


def print_placements(args: argparse.Namespace, plan: Plan) -> int:
    """Measure PEARL's placements."""
    from app.bench import placements

    with progress() as note:
        if args.profile:
            reports, left_out = placements.virtual(args.profile, plan, note)
        else:
            reports, left_out = [placements.measured(plan, note)], {}
    if args.json:
        common.print_json(
            {"reports": [report.to_dict() for report in reports], "left_out": left_out, "quick": args.quick}
        )
    else:
        print("\n".join(placements.lines(reports, left_out)))
    return 0


def print_heads(args: argparse.Namespace, plan: Plan) -> int:
    """Measure ParallelSpec heads of different K."""
    from app.bench import groups

    with progress() as note:
        report = groups.measure(args.heads, plan, note, args.profile)
    if args.output:
        with replacing(args.output) as file:
            file.write(report.chart())
    if args.json:
        common.print_json(report.to_dict() | {"quick": args.quick})
    else:
        print("\n".join(report.lines()))
    return 0


def print_drafters(args: argparse.Namespace) -> int:
    """Measure the drafters of a pair."""
    from app.bench import drafters
    from app.cli.waiting import DownloadBar
    from engine.environment import environment
    from engine.pairs.pair import Pair
    from engine.pairs.sources import resolve

    with DownloadBar() as bar:
        find = partial(resolve, progress=bar.show)
        if args.target:
            pair = Pair.of(args.target, *(args.drafter or ()), resolve=find)
        else:
            pair = Pair.find(args.pair or "bundled", find)
    args.prompt, args.prompt_file = None, args.prompt_file or drafters.PROMPTS
    prompts = [pair.encode(row.text) for row in prompts_of(args)]
    with progress() as note:
        size = drafters.QUICK if args.quick else drafters.FULL
        report = drafters.measure(pair, prompts, size, note, noise=args.noise)
    if args.json:
        common.print_json(report.to_dict() | {"quick": args.quick, "environment": environment()})
    else:
        print("\n".join(report.lines()))
    return 0


def print_whatif(args: argparse.Namespace) -> int:
    """Compare predictions of what-if with real runs."""
    from app.bench import whatif

    with progress() as note:
        errors = whatif.measure(6 if args.quick else 36, note)
    if args.json:
        common.print_json({"classes": [error.to_dict() for error in errors], "quick": args.quick})
    else:
        print("\n".join(whatif.lines(errors)))
    return 0
