"""Measure speed, tracing and memory on the bundled pair, and compare with transformers."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping
from typing import Any

from app.cli import common


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--quick", action="store_true", help="fewer prompts and rounds: under five minutes")
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Measure; progress goes to stderr."""
    from tqdm import tqdm

    from app.bench import figures, plan, suite
    from engine.environment import environment

    begun = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr), tqdm(unit=" rounds", file=sys.stderr, leave=False) as bar:

        def note(text: str) -> None:
            if text:
                bar.set_description(text)
            else:
                bar.update()

        found = suite.measure(plan.QUICK if args.quick else plan.FULL, note)
    bars = figures.judged(found)
    result = {key: figure.to_dict() for key, figure in found.items()} | {
        "bars": bars,
        "quick": args.quick,
        "seconds": round(time.perf_counter() - begun, 1),
        "environment": environment(),
    }
    if args.json:
        common.print_json(result)
    else:
        _print(result, bars)
    return 0


def _print(result: Mapping[str, Any], bars: Mapping[str, Mapping[str, Any]]) -> None:
    from app.bench.figures import BARS

    print(f"bundled pair · CPU fp32 · {result['environment']['processor']} · {result['seconds']:.0f} s")
    print(f"{'figure':30}{'median':>12}{'min':>12}{'max':>12}{'runs':>6}  {'bar':14}unit")
    for key, figure in result.items():
        if isinstance(figure, dict) and "median" in figure:
            numbers = "".join(f"{_number(figure[name]):>12}" for name in ("median", "min", "max"))
            bar = f"{BARS[key]} {'met' if bars[key]['met'] else 'missed'}" if key in bars else ""
            print(f"{key:30}{numbers}{figure['runs']:>6}  {bar:14}{figure['unit']}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
