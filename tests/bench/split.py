"""What tensor parallelism costs: a split target beside a whole one, on two cores of this machine.

    python -m tests.bench.split

See docs/devices.md.
"""

from __future__ import annotations

from statistics import median

import specscope
from specscope.engine.types import Limits

PROMPT, ROUNDS = "Write a short story about a lighthouse.", 5


def targets() -> None:
    runs = dict[str, list[tuple[float, ...]]]()
    with (
        specscope.open("smollm2", device="cpu") as whole,
        specscope.open("smollm2", device="cpu", tp=2) as split,
    ):
        for name, cluster in [("whole", whole), ("split", split)] * ROUNDS:
            trace = cluster.run("autoregressive", PROMPT, limits=Limits(32))
            spans = [s for s in trace.spans if s.step and s.device == "cpu:1"]
            times = [
                sum(s.end - s.start for s in spans if s.kind == k) / 32e6 for k in ("verify", "communicate")
            ]
            runs.setdefault(name, []).append((sum(times), *times))
    for name, rows in runs.items():
        together, computing, communicating = map(median, zip(*rows, strict=True))
        print(
            f"{name}: {together:.0f} ms per token, {computing:.0f} computing, {communicating:.0f} exchanges"
        )


if __name__ == "__main__":
    targets()
