"""Races of a method against itself: their verdicts must name no cause.

`python -m tests.bench.verdicts [PAIR] [--method KEY] [--races N] [--busy]` prints one JSON object.
`--busy` keeps another process at work meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
from collections.abc import Generator
from typing import Any

import specscope
from specscope.engine.methods import BASELINE
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from specscope.traces.metrics import measure
from specscope.traces.race import race_line, racers_of
from specscope.traces.verdict import verdict
from tests.bench.predictions import prompts

NEW_TOKENS = 48


def spin() -> None:
    while True:
        pass


@contextlib.contextmanager
def other_programs(busy: bool) -> Generator[None]:
    process = multiprocessing.Process(target=spin, daemon=True)
    if busy:
        process.start()
    try:
        yield
    finally:
        if busy:
            process.kill()


def race(runs: list[Trace]) -> dict[str, Any]:
    measured = [measure(run) for run in runs]
    racers = racers_of(runs, measured)
    verdicts = [verdict(i, racers, metrics) for i, metrics in enumerate(measured)][1:]
    return {
        "line": race_line(racers),
        "speeds": [metrics.tokens_per_second for metrics in measured],
        "summaries": [found["summary"] for found in verdicts],
        "causes": [found["reason"] for found in verdicts if found["reason"]],
        "advice": [found["advice"] for found in verdicts if found["advice"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", nargs="?", default="smollm2")
    parser.add_argument("--method", default=BASELINE)
    parser.add_argument("--races", type=int, default=10)
    parser.add_argument("--busy", action="store_true")
    args = parser.parse_args()
    keys = [BASELINE, args.method, args.method]
    limits, found = Limits(NEW_TOKENS), list[dict[str, Any]]()
    with specscope.open(args.pair) as cluster, other_programs(args.busy):
        for _ in range(args.races):
            found.append(race([cluster.run(key, prompts()[0], limits=limits) for key in keys]))
    print(json.dumps({"causes": sum(len(row["causes"]) for row in found), "races": found}, indent=1))


if __name__ == "__main__":
    main()
