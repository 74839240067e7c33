"""What `specscope.record` costs the thread that it records: CPU time per span and per round."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import specscope
from specscope.app.bench.figures import Measurement
from specscope.engine.trace.recorder import Recorder

SPANS, ROUNDS = 2000, 200
DRAFT = (11, 12, 13, 14)
"""Of a round: four drafted tokens, of which two are accepted."""


def measure(repeats: int) -> dict[str, Measurement]:
    with tempfile.TemporaryDirectory() as folder, specscope.record(Path(folder) / "bench.jsonl") as on:
        span, judging = _times(_span, on, SPANS, repeats), _times(_round, on, ROUNDS, repeats)
    off = _times(_span, specscope.record(None), SPANS, repeats)
    return {
        "recorded_span_ns": Measurement(span, "ns", detail={"off_ns": round(min(off))}),
        "recorded_round_ns": Measurement(judging, "ns", detail={"drafted": len(DRAFT)}),
    }


def _span(rec: Recorder) -> None:
    with rec.span("draft", rows=1):
        pass


def _round(rec: Recorder) -> None:
    rec.round(drafted=DRAFT, accepted=2, emitted=(11, 12, 15), q=(0.9, 0.8, 0.7, 0.6))


def _times(call: Callable[[Recorder], None], rec: Recorder, count: int, repeats: int) -> tuple[float, ...]:
    """Return the CPU time of one call in nanoseconds, for each repeat, the loop's own included."""
    times = list[float]()
    for _ in range(repeats):
        begun = time.thread_time_ns()
        for _ in range(count):
            call(rec)
        times.append((time.thread_time_ns() - begun) / count)
    return tuple(times)
