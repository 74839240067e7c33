"""The notes on the health of sound and looping runs: how often, and which.

`python -m tests.bench.health [--pair smollm2] [--methods A,B] [--tokens N]`; see
docs/methods/metrics.md. Virtual time: the texts are those of any machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product

import specscope
from specscope.app.named import bench_prompts
from specscope.engine.types import Limits, Sampling
from specscope.traces.judge.health import health

METHODS = "speculative,pearl,tree,specbranch,ssd,prompt_lookup"
TEMPERATURES = (0.0, 0.7, 1.0)


def notes(cluster, methods: list[str], tokens: int) -> Iterator[tuple[str, float, int, str]]:
    """Yield method, temperature, number of the prompt, and the note, which may be empty."""
    for method, temperature in product(methods, TEMPERATURES):
        for i, prompt in enumerate(bench_prompts()):
            sampling = Sampling(temperature, seed=i)
            yield (
                method,
                temperature,
                i,
                health(cluster.run(method, prompt, sampling=sampling, limits=Limits(tokens))),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", default="bundled")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--tokens", type=int, default=400)
    args = parser.parse_args()
    with specscope.open(args.pair, runtime="virtual", profile="pearl-4xA100") as cluster:
        found = list(notes(cluster, args.methods.split(","), args.tokens))
    noted = [row for row in found if row[3]]
    for method, temperature, i, note in noted:
        print(f"{method} at {temperature:g}, prompt {i}: {note}")
    print(f"{len(noted)} of {len(found)} runs have a note")


if __name__ == "__main__":
    main()
