"""Tracks: one per working device, with its spans, its waiting and its measured load."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, TypedDict

from traces.imported import origin
from traces.metrics import measured_occupancy
from traces.spans import lanes
from traces.view.clock import decoding_clock, working_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.trace.events import Device, Span
    from engine.trace.trace import Trace
    from traces.waiting import Wait

METERS = {"cpu": "psutil", "cuda": "NVML"}
"""What measures the load of a device of that kind."""


class SpanColumns(TypedDict):
    """The spans of a track, by start; fields of `events.Span`, and two more."""

    id: list[int]
    kind: list[str]
    start: list[float]
    end: list[float]
    lane: list[int]
    """Row in the track, from 0: spans that overlap (streams) are drawn below each other."""
    step: list[int]
    rows: list[int]
    context: list[int]
    fate: list[str]
    """See `span_fates`."""


class MeasuredView(TypedDict):
    """The measured load of a device."""

    label: str
    samples: list[tuple[float, float, int, float | None]]
    """(ms, busy share, bytes, watts)."""
    busy: float | None
    """Mean busy share while decoding; null without a sample in that time."""
    memory: int
    """Largest sample, in bytes."""
    power: float | None
    """Mean watts; null without a sensor."""


class TrackView(TypedDict):
    """A device that works."""

    device: str
    label: str
    role: str
    lanes: int
    spans: SpanColumns
    waits: list[tuple[float, float, str]]
    """(start, end, reason) of every idle stretch while decoding."""
    measured: MeasuredView | None
    """Null without samples."""


def tracks(trace: Trace, waits: Sequence[Wait], devices: Sequence[Device] | None = None) -> list[TrackView]:
    """Return the tracks in the header's order of devices.

    Args:
        trace: The run.
        waits: Its `waiting.waits`.
        devices: The devices that get a track; `working_devices(trace)` unless given.
    """
    clock, fates = decoding_clock(trace), span_fates(trace)
    rows: list[TrackView] = []
    for device in working_devices(trace) if devices is None else devices:
        own = (s for s in trace.spans if s.device == device.name)
        columns = _columns(trace, sorted(own, key=lambda s: (s.start, s.end, s.id)), fates)
        rows.append(
            {
                "device": device.name,
                "label": _label(trace, device),
                "role": device.role,
                "lanes": max(columns["lane"], default=0) + 1,
                "spans": columns,
                "waits": [(clock(w.start), clock(w.end), w.reason) for w in waits if w.device == device.name],
                "measured": _measured(trace, device),
            }
        )
    return rows


def _label(trace: Trace, device: Device) -> str:
    """Return a device's label, with the error of its node's clock if it has one."""
    clock = trace.header.environment.get("clocks", {}).get(device.name, {})
    error = clock.get("uncertainty_ns", 0) / 1e6
    return f"{device.label} · clock ±{error:.2g} ms" if error else device.label


def _columns(trace: Trace, spans: list[Span], fates: dict[int, str]) -> SpanColumns:
    clock = decoding_clock(trace)
    return {
        "id": [s.id for s in spans],
        "kind": [s.kind for s in spans],
        "start": [clock(s.start) for s in spans],
        "end": [clock(s.end) for s in spans],
        "lane": lanes(spans),
        "step": [s.step for s in spans],
        "rows": [s.rows for s in spans],
        "context": [s.context for s in spans],
        "fate": [fates[s.id] for s in spans],
    }


def span_fates(trace: Trace) -> dict[int, str]:
    """Return the fate of each span's work, by id.

    `kept`: one of its tokens was committed, or it drafts nothing; `rejected` or `discarded`: none
    of its tokens was accepted; `cancelled`; `open`: its draft is not decided yet; `unknown`: a
    draft of an imported run without decisions.
    """
    order = {"accepted": 3, "rejected": 2, "discarded": 1}
    best: dict[int, str] = {}
    for d in trace.decisions:
        if d.draft_span >= 0 and order.get(d.outcome, 0) > order.get(best.get(d.draft_span, ""), 0):
            best[d.draft_span] = d.outcome
    undecided = "open" if trace.status == "running" else "discarded"
    if origin(trace.header):
        undecided = "unknown"

    def fate(span: Span) -> str:
        if span.outcome == "cancelled":
            return "cancelled"
        if span.kind != "draft":
            return "kept"
        outcome = best.get(span.id - span.rank, undecided)
        return "kept" if outcome == "accepted" else outcome

    return {span.id: fate(span) for span in trace.spans}


def _measured(trace: Trace, device: Device) -> MeasuredView | None:
    samples = [o for o in trace.occupancy if o.device == device.name]
    if not samples:
        return None
    clock, powers = decoding_clock(trace), [o.power for o in samples if o.power is not None]
    meter = METERS.get(device.kind)
    return {
        "label": f"measured ({meter})" if meter else "measured",
        "samples": [(clock(o.time), o.busy, o.memory, o.power) for o in samples],
        "busy": measured_occupancy(trace).get(device.name),
        "memory": max(o.memory for o in samples),
        "power": fmean(powers) if powers else None,
    }
