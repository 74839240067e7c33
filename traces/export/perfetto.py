"""A trace in the Chrome JSON format, which ui.perfetto.dev and chrome://tracing open.

A process is a device, a thread a lane of it: spans of one lane never overlap. Arrows lead from a
draft to the verification that judged it. Counters show whether a device works, and its measured
load, memory and power, and the rates of windows of counts. The format counts in microseconds; three
decimals keep the nanoseconds.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import NO_DEVICES
from specscope.traces.facts.counted import whole_windows
from specscope.traces.facts.imported import is_timed
from specscope.traces.facts.intervals import lanes
from specscope.traces.facts.joined import spans_by_id
from specscope.traces.facts.waiting import busy, by_device
from specscope.traces.view.counts import view_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specscope.engine.trace.events import Span
    from specscope.engine.trace.trace import Trace


WINDOWS = 1000
"""Number of the process whose counters are the windows'; devices count from 1."""


def write_perfetto(trace: Trace, file: IO[str]) -> None:
    json.dump(to_perfetto(trace), file, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_perfetto(trace: Trace) -> dict[str, Any]:
    """Return the trace as one JSON object of that format; UsageError without times."""
    if not is_timed(trace.header):
        raise UsageError(
            f"run {trace.header.run_id} has no times, so it has no timeline; export JSONL or CSV"
        )
    header = trace.header
    pids = {d.name: i for i, d in enumerate(header.devices, 1)}
    tids = _threads(trace)
    timed = [*_spans(trace, pids, tids), *_flows(trace, pids, tids), *_counters(trace, pids), *_counts(trace)]
    timed.sort(key=lambda e: (e["ts"], e["ph"] != "X"))
    return {
        "traceEvents": [*_names(trace, pids, tids), *timed],
        "displayTimeUnit": "ms",
        "otherData": {
            "run": header.run_id,
            "method": header.title,
            "created": header.created,
            "clock": header.clock,
            "lossless": header.lossless,
            "status": trace.status,
        },
    }


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _threads(trace: Trace) -> dict[int, int]:
    ordered = (sorted(spans, key=lambda s: (s.start, s.id)) for spans in by_device(trace).values())
    rows = ((spans, lanes((s.start, s.end) for s in spans)) for spans in ordered)
    return {s.id: lane + 1 for spans, taken in rows for s, lane in zip(spans, taken, strict=True)}


def _names(trace: Trace, pids: dict[str, int], tids: dict[int, int]) -> Iterator[dict[str, Any]]:
    spans = by_device(trace)
    if trace.windows:
        yield {"ph": "M", "name": "process_name", "pid": WINDOWS, "args": {"name": "windows of counts"}}
    for device in trace.header.devices:
        pid = pids[device.name]
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": device.label}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for tid in sorted({tids[s.id] for s in spans.get(device.name, ())}):
            name = device.role if tid == 1 else f"{device.role} (at the same time, {tid})"
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _spans(trace: Trace, pids: dict[str, int], tids: dict[int, int]) -> Iterator[dict[str, Any]]:
    for span in trace.spans:
        yield {
            "ph": "X",
            "name": span.kind if span.outcome == "done" else f"{span.kind} ({span.outcome})",
            "cat": span.kind,
            "pid": pids[span.device],
            "tid": tids[span.id],
            "ts": _us(span.start),
            "dur": _us(span.end - span.start),
            "args": {
                "span": span.id,
                "model": span.model,
                "step": span.step,
                "sequence": span.sequence,
                "rows": span.rows,
                "context": span.context,
                "cells": span.cells,
                "outcome": span.outcome,
            },
        }


def _flows(trace: Trace, pids: dict[str, int], tids: dict[int, int]) -> Iterator[dict[str, Any]]:
    """Yield an arrow for each pair of a draft and the verification that judged it.

    Both ends must lie inside their spans, the first one earlier. PEARL verifies a token while it is
    being drafted, so the arrow ends in the last nanosecond of the verification, and begins no later
    than that.
    """
    spans = spans_by_id(trace)
    pairs = dict.fromkeys((d.draft_span, d.verify_span) for d in trace.decisions)
    for number, (draft_id, verify_id) in enumerate(pairs):
        draft, verify = spans.get(draft_id), spans.get(verify_id)
        if draft is None or verify is None or draft.start == draft.end or verify.start == verify.end:
            continue
        finish = verify.end - 1
        begin = min(draft.end - 1, finish)
        if begin < draft.start:
            continue
        flow = {"name": "judged by", "cat": "flow", "id": number}
        yield {"ph": "s", **flow, **_place(draft, pids, tids), "ts": _us(begin)}
        yield {"ph": "f", "bp": "e", **flow, **_place(verify, pids, tids), "ts": _us(finish)}


def _place(span: Span, pids: dict[str, int], tids: dict[int, int]) -> dict[str, int]:
    return {"pid": pids[span.device], "tid": tids[span.id]}


def _counters(trace: Trace, pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    for device, intervals in busy(trace).items():
        for start, end in intervals:
            for time, works in ((start, 1), (end, 0)):
                yield {
                    "ph": "C",
                    "name": "works",
                    "pid": pids[device],
                    "ts": _us(time),
                    "args": {"busy": works},
                }
    for sample in trace.occupancy:
        if sample.device in NO_DEVICES:  # means, not a counter
            continue
        at = {"pid": pids[sample.device], "ts": _us(sample.time)}
        yield {"ph": "C", "name": "measured load", **at, "args": {"share": sample.busy}}
        yield {"ph": "C", "name": "memory", **at, "args": {"bytes": sample.memory}}
        if sample.power is not None:
            yield {"ph": "C", "name": "power", **at, "args": {"watts": sample.power}}


def _counts(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the known rates of each window at its start, and 0 where no window follows at once."""
    rows = sorted(whole_windows(trace.windows), key=lambda one: one.start)
    for row, after in zip(rows, [*rows, None][1:], strict=True):
        view = view_of(row)
        share = row.accepted / row.drafted if row.drafted and row.accepted is not None else None
        rates = {
            "accepted / drafted": share,
            "tokens / draft": view["length"],
            "tokens/s": view["speed"],
            "requests": view["running"],
        }
        for name, rate in rates.items():
            if rate is not None:
                counter = {"ph": "C", "name": name, "pid": WINDOWS}
                yield counter | {"ts": _us(row.start), "args": {"value": rate}}
                if row.end > row.start and (after is None or after.start > row.end):
                    yield counter | {"ts": _us(row.end), "args": {"value": 0}}
