"""The cost of tracing: time of the run's thread and of the writer's, spans stored per second.

`python -m tests.bench.tracing [--quick] [--json]`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

import specscope
from specscope.app.bench.figures import FULL, QUICK, Bar, Measurement, Note
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.errors import SpecScopeError
from specscope.engine.trace.events import Footer, Header, Row, Span
from specscope.engine.trace.trace import Trace
from specscope.engine.types import Limits
from tests.bench import script

if TYPE_CHECKING:
    from specscope import Cluster
    from specscope.traces.database.store import Store


ROOT = Path(__file__).resolve().parents[2]
PAUSE = 0.01
"""Seconds between two samples of memory."""
CONFIGS = {"autoregressive": {}, "speculative": {"gamma": 3}, "pearl": {"gamma": 3}}
BARS = {"tracing_overhead": Bar(at_most=0.01), "spans_per_second": Bar(at_least=50_000)}


class Traced(NamedTuple):
    """A run that was written to a store as it ran."""

    trace: Trace
    seconds: float
    writer_seconds: float
    """CPU time of the writer: of all threads except the run's."""

    @property
    def events(self) -> int:
        return sum(1 for _ in self.trace.rows())


def measure(args: argparse.Namespace, note: Note) -> tuple[dict[str, Measurement], dict[str, Any]]:
    """Measure the costs on worker processes; each figure is of the most expensive method."""
    from specscope.traces.database.store import Store

    plan, count, peaks = (QUICK, 50_000, 1) if args.quick else (FULL, 200_000, 3)
    pair, questions = Pair.find(), plan.questions()
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "bench.db") as store:
        runs: dict[str, list[Traced]] = {method: [] for method in CONFIGS}
        note("tracing")
        with specscope.open(pair, runtime="local-process", device="cpu") as workers:
            for question in [questions[0], *questions]:
                ids = pair.encode(question)
                for method, config in CONFIGS.items():
                    runs[method].append(run_traced(store, workers, method, config, ids, plan.new_tokens))
                note("")
        runs = {method: repeats[1:] for method, repeats in runs.items()}  # without the warm-up
        longest = max((t for repeats in runs.values() for t in repeats), key=lambda t: t.events)
        cost = [cost_of_event(store, longest.trace) for _ in range(plan.repeats)]
        rates = [spans_per_second(store, longest.trace.header, count) for _ in range(plan.repeats)]
        note("memory")
        command = compare(questions[0], plan.new_tokens, Path(folder) / "memory.db")
        memory = tuple(peak_mib(command) for _ in range(peaks))
    return {
        **_overhead(runs, cost),
        "spans_per_second": Measurement(tuple(rates), "spans/s", detail={"spans": count}),
        "peak_memory_mib": Measurement(memory, "MiB"),
    }, {}


def run_traced(
    store: Store, cluster: Cluster, method: str, config: Mapping[str, Any], prompt: Sequence[int], new: int
) -> Traced:
    begun, own, total = time.perf_counter(), time.thread_time(), time.process_time()
    with store.listening() as listen:
        trace = cluster.run(method, prompt, config=config, limits=Limits(new), listener=listen)
        seconds = time.perf_counter() - begun
    others = time.process_time() - total - (time.thread_time() - own)
    return Traced(trace, seconds, max(0.0, others))


def cost_of_event(store: Store, trace: Trace) -> float:
    rows = [(type(row), tuple(getattr(row, f.name) for f in dataclasses.fields(row))) for row in trace.rows()]
    copy, header = Trace(trace.header), _fresh(trace.header)
    with store.record(header) as recorder:
        begun = time.thread_time()
        for kind, values in rows:
            event: Row = kind(*values)
            copy.add(event)
            recorder.add(event)
        seconds = time.thread_time() - begun
        recorder.add(Footer("done", ("length",), ("",), 0))
    return seconds / len(rows)


def spans_per_second(store: Store, header: Header, count: int) -> float:
    device = header.devices[0].name
    spans = [Span(i, device, "draft", i, i + 1, "drafter", i // 4, 0, 1, i, "done") for i in range(count)]
    recorder = store.record(_fresh(header))
    begun = time.perf_counter()
    for span in spans:
        recorder.add(span)
    recorder.close()
    return count / (time.perf_counter() - begun)


def _fresh(header: Header) -> Header:
    return dataclasses.replace(header, run_id=uuid.uuid4().hex[:12])


def _overhead(runs: Mapping[str, Sequence[Traced]], cost: Sequence[float]) -> dict[str, Measurement]:
    event = statistics.median(cost)
    shares = {m: tuple(t.events * event / t.seconds for t in repeats) for m, repeats in runs.items()}
    writer = {m: tuple(t.writer_seconds / t.seconds for t in repeats) for m, repeats in runs.items()}
    counts = {m: [t.events / len(t.trace.commits) for t in repeats] for m, repeats in runs.items()}
    return {
        "tracing_overhead": _costliest(
            shares,
            "share of the time per token",
            event_microseconds=Measurement(tuple(1e6 * c for c in cost), "us").to_dict(),
            events_per_token={m: round(statistics.median(n), 2) for m, n in counts.items()},
        ),
        "tracing_writer_cpu": _costliest(writer, "share of one core"),
    }


def _costliest(values: Mapping[str, tuple[float, ...]], unit: str, **detail: Any) -> Measurement:
    by_method = {m: statistics.median(v) for m, v in values.items()}
    method = max(by_method, key=by_method.__getitem__)
    return Measurement(values[method], unit, detail={"method": method, "by_method": by_method, **detail})


def compare(prompt: str, new_tokens: int, database: Path) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "specscope.app.main",
        "compare",
        "--methods",
        ",".join(CONFIGS),
        "--json",
    ]
    command += ["--prompt", prompt, "--max-new-tokens", str(new_tokens)]
    return [*command, "--runtime", "local-process", "--device", "cpu", "--db", str(database)]


def peak_mib(command: Sequence[str]) -> float:
    """Run a command and return the peak resident memory of its process tree, in MiB.

    Shared pages count once per process, so this is an upper bound.
    """
    peak = 0
    with tempfile.TemporaryFile() as errors:
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=errors) as child:
            while child.poll() is None:
                peak = max(peak, _resident(child.pid))
                time.sleep(PAUSE)
        if child.returncode:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines()
            raise SpecScopeError(
                f"{command[0]} ended with {child.returncode}: {lines[-1] if lines else 'no message'}"
            )
    return peak / 2**20


def _resident(pid: int) -> int:
    try:
        first = psutil.Process(pid)
        processes = [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


if __name__ == "__main__":
    script.main(script.options(__doc__), measure, BARS)
