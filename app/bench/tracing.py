"""The cost of tracing: time of the run's thread and the writer's, spans stored per second."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from app.bench.figures import Figure
from app.bench.plan import Plan
from engine.trace.events import Footer, Header, Row, Span
from engine.trace.trace import Trace
from engine.types import Limits

if TYPE_CHECKING:
    from engine import Cluster
    from traces.store import Store


class Traced(NamedTuple):
    """A run that was written to a store as it ran."""

    trace: Trace
    seconds: float
    writer_seconds: float
    """CPU time of the writer: of all threads except the run's."""

    @property
    def events(self) -> int:
        """Number of rows in the trace."""
        return sum(1 for _ in self.trace.rows())


def measure(
    workers: Cluster,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    configs: Mapping[str, Mapping[str, Any]],
    step: Callable[[], None],
) -> dict[str, Figure]:
    """Measure the costs on worker processes; each figure is of the most expensive method."""
    from traces.store import Store

    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "bench.db") as store:
        runs: dict[str, list[Traced]] = {method: [] for method in configs}
        for prompt in [prompts[0], *prompts]:
            for method, config in configs.items():
                runs[method].append(run_traced(store, workers, method, config, prompt, plan.new_tokens))
            step()
        runs = {method: repeats[1:] for method, repeats in runs.items()}  # without the warm-up
        longest = max((t for repeats in runs.values() for t in repeats), key=lambda t: t.events)
        cost = [cost_of_event(store, longest.trace) for _ in range(plan.repeats)]
        rates = [spans_per_second(store, longest.trace.header, plan.spans) for _ in range(plan.repeats)]
        step()
    return {
        **_overhead(runs, cost),
        "spans_per_second": Figure(tuple(rates), "spans/s", detail={"spans": plan.spans}),
    }


def run_traced(
    store: Store, cluster: Cluster, method: str, config: Mapping[str, Any], prompt: Sequence[int], new: int
) -> Traced:
    """Run a method and write its trace to a store."""
    recorders: list[Any] = []

    def listen(event: Any) -> None:
        if recorders:
            recorders[0].add(event)
        else:
            recorders.append(store.record(event))

    begun, own, total = time.perf_counter(), time.thread_time(), time.process_time()
    trace = cluster.run(method, prompt, config=config, limits=Limits(new), listener=listen)
    seconds = time.perf_counter() - begun
    recorders[0].close()
    others = time.process_time() - total - (time.thread_time() - own)
    return Traced(trace, seconds, max(0.0, others))


def cost_of_event(store: Store, trace: Trace) -> float:
    """Return the CPU seconds to make an event, keep it and pass it to the writer."""
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
    """Return spans per second from the first one added until all are in the file."""
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


def _overhead(runs: Mapping[str, Sequence[Traced]], cost: Sequence[float]) -> dict[str, Figure]:
    event = statistics.median(cost)
    shares = {m: tuple(t.events * event / t.seconds for t in repeats) for m, repeats in runs.items()}
    writer = {m: tuple(t.writer_seconds / t.seconds for t in repeats) for m, repeats in runs.items()}
    per_token = {
        m: statistics.median(t.events / len(t.trace.commits) for t in repeats) for m, repeats in runs.items()
    }
    return {
        "tracing_overhead": _costliest(
            shares,
            "share of the time per token",
            event_microseconds=Figure(tuple(1e6 * c for c in cost), "us").to_dict(),
            events_per_token={m: round(n, 2) for m, n in per_token.items()},
        ),
        "tracing_writer_cpu": _costliest(writer, "share of one core"),
    }


def _costliest(values: Mapping[str, tuple[float, ...]], unit: str, **detail: Any) -> Figure:
    by_method = {m: statistics.median(v) for m, v in values.items()}
    method = max(by_method, key=by_method.__getitem__)
    return Figure(values[method], unit, detail={"method": method, "by_method": by_method, **detail})
