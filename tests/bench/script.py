"""A benchmark as a script: its options, its progress, and its figures as a table or as JSON."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

from specscope.app.bench.figures import Bar, Figure, Note
from specscope.app.cli import options as shared
from specscope.app.cli.bench import progress, report

Measure = Callable[[argparse.Namespace, Note], tuple[Mapping[str, Figure], Mapping[str, Any]]]
"""(options, progress) -> figures by name, and facts such as the device."""


def options(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    shared.add_options(parser, shared.JSON)
    return parser


def main(parser: argparse.ArgumentParser, measure: Measure, bars: Mapping[str, Bar]) -> None:
    args, begun = parser.parse_args(), time.perf_counter()
    with progress() as note:
        figures, facts = measure(args, note)
    judged = bars if facts.get("on_gpu", True) else {}
    report(figures, judged, args, {**facts, "seconds": round(time.perf_counter() - begun, 1)})
