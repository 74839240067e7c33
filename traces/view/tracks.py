"""Tracks: one per working device, with its spans, its waiting and its measured load.

Under them the overlap band, whose shares are the headline; under load the queue: how many requests
wait for a KV slot; and the rounds of a run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import accumulate, pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypedDict

from specscope.engine.run.policies import MINEDRAFT
from specscope.engine.trace.events import DRAFTS, Span
from specscope.engine.trace.header import SERVER
from specscope.traces.facts import waiting
from specscope.traces.facts.fates import JUDGED, useful_glue
from specscope.traces.facts.imported import SPANS_OF_DRAFTS, origin
from specscope.traces.facts.intervals import lanes
from specscope.traces.facts.metrics import measured_occupancy
from specscope.traces.facts.requests import load_of, requests
from specscope.traces.facts.waiting import decoding_clock, working_devices
from specscope.traces.view import columns_of, row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.events import Device, Header, Occupancy
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.waiting import Wait

METERS = {"cpu": ("whole core", "psutil"), "cuda": ("whole card", "NVML")}
"""What is measured by a device's kind, by all programs, and by what; on Ray a worker's own time."""
ROLE = "requests"
UNDIVIDED = "server"
"""Role of a track on which it is unknown what each side does."""


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


class BatchedColumns(SpanColumns, total=False):
    """The spans of a track in a run with MineDraft's two batches."""

    batch: list[int]
    """Of a `draft` or a `verify`: 0, or 1 for the second batch; else -1."""


class MeasuredView(TypedDict):
    """The measured load of a device."""

    label: str
    samples: list[tuple[float, float, int, float | None]]
    """(ms, busy share, bytes, watts)."""
    busy: float | None
    """Mean busy share while decoding; null without a sample in that time."""
    memory: int
    power: float | None


class TrackView(TypedDict):
    """A device that works."""

    device: str
    label: str
    role: str
    lanes: int
    spans: BatchedColumns
    waits: list[tuple[float, float, str]]
    """(start, end, reason) of every idle stretch while decoding."""
    measured: MeasuredView | None


def tracks(trace: Trace, waits: Sequence[Wait], devices: Sequence[Device] | None = None) -> list[TrackView]:
    fates, spans, idle = span_fates(trace), waiting.by_device(trace), waits_of(trace, waits)
    loads, rows = measured(trace), list[TrackView]()
    sides = waiting.divided(trace) and SERVER not in trace.header.environment
    for device in working_devices(trace) if devices is None else devices:
        own = sorted(spans.get(device.name, ()), key=lambda s: (s.start, s.end, s.id))
        columns = _columns(trace, own, fates)
        rows.append(
            {
                "device": device.name,
                "label": _label(trace, device),
                "role": device.role if sides else UNDIVIDED,
                "lanes": max(columns["lane"], default=0) + 1,
                "spans": columns,
                "waits": idle[device.name],
                "measured": loads.get(device.name),
            }
        )
    return rows


def waits_of(trace: Trace, waits: Sequence[Wait]) -> dict[str, list[tuple[float, float, str]]]:
    """Return the waits of each device as a track has them."""
    clock, idle = decoding_clock(trace), defaultdict[str, "list[tuple[float, float, str]]"](list)
    for wait in waits:
        idle[wait.device].append((clock(wait.start), clock(wait.end), wait.reason))
    return idle


def _label(trace: Trace, device: Device) -> str:
    """Return a device's label, with the error of its node's clock if it has one."""
    clock = trace.header.environment.get("clocks", {}).get(device.name, {})
    error = clock.get("uncertainty_ns", 0) / 1e6
    return f"{device.label} · clock ±{error:.2g} ms" if error else device.label


def _columns(trace: Trace, spans: list[Span], fates: dict[int, str]) -> BatchedColumns:
    clock = decoding_clock(trace)
    columns = columns_of(
        SpanColumns,
        spans,
        start=[clock(s.start) for s in spans],
        end=[clock(s.end) for s in spans],
        lane=lanes((s.start, s.end) for s in spans),
        fate=[fates[s.id] for s in spans],
    )
    batch = batches(trace.header, columns["kind"], columns["step"])
    return {**columns} if batch is None else {**columns, "batch": batch}


def batches(header: Header, kinds: Sequence[str], steps: Sequence[int]) -> list[int] | None:
    """Return which of MineDraft's batches each span works for: they take turns at each step."""
    load = load_of(header)
    if load is None or load.policy != MINEDRAFT:
        return None
    return [
        (step + (kind == "draft")) % 2 if kind in ("draft", "verify") else -1  # a draft is verified next
        for kind, step in zip(kinds, steps, strict=True)
    ]


def span_fates(trace: Trace) -> dict[int, str]:
    """Return the fate of each span's work, by id.

    `kept`: one of its tokens was committed, or it drafts nothing; `rejected` or `discarded`: none
    of its tokens was accepted; `cancelled`; `open`: its draft is not decided yet; `unknown`: a
    draft of another engine or program without decisions.
    """
    order = {name: i for i, name in enumerate(JUDGED)}
    best = dict.fromkeys(useful_glue(trace), "accepted")
    for d in trace.decisions:
        if d.draft_span >= 0 and order.get(d.outcome, 0) > order.get(best.get(d.draft_span, ""), 0):
            best[d.draft_span] = d.outcome
    open_fate = undecided(trace)
    return {s.id: fate(s.kind, s.outcome, best.get(s.id - s.rank, ""), open_fate) for s in trace.spans}


def fate(kind: str, outcome: str, judged: str, undecided: str) -> str:
    """Return the fate of a span; `judged` is the best outcome of its tokens, empty without one."""
    if outcome == "cancelled":
        return "cancelled"
    if kind not in DRAFTS or judged == "accepted":
        return "kept"
    return judged or undecided


def undecided(trace: Trace) -> str:
    """Return the fate of drafts without decisions."""
    found = origin(trace.header)
    if found is not None and (not found.recorded or SPANS_OF_DRAFTS in found.unknown):
        return "unknown"
    return "open" if trace.status == "running" else "discarded"


def _label_of_load(trace: Trace, device: Device) -> str:
    whole, meter = METERS.get(device.kind, ("measured", ""))
    what = "worker" if trace.header.runtime == "ray" and device.kind == "cpu" else whole
    return f"{what} ({meter})" if meter else what


def measured(trace: Trace) -> dict[str, MeasuredView]:
    """Return the loads of the devices that have samples."""
    samples: dict[str, list[Occupancy]] = {}
    for sample in trace.occupancy:
        samples.setdefault(sample.device, []).append(sample)
    busy, clock = measured_occupancy(trace), decoding_clock(trace)
    found = dict[str, MeasuredView]()
    for device in trace.header.devices:
        own = samples.get(device.name, ())
        powers = [o.power for o in own if o.power is not None]
        if own:
            found[device.name] = {
                "label": _label_of_load(trace, device),
                "samples": [(clock(o.time), o.busy, o.memory, o.power) for o in own],
                "busy": busy.get(device.name),
                "memory": max(o.memory for o in own),
                "power": fmean(powers) if powers else None,
            }
    return found


class ShareOfTime(TypedDict):
    """A part of the headline."""

    kind: str
    """`both`, `draft`, `target` or `none`: the sides that work."""
    label: str
    percent: int
    """Of decoding, as in the figures."""


def band(trace: Trace, stretches: Sequence[waiting.Band]) -> list[tuple[str, float, float]]:
    """Return (kind, start, end) of the adjacent stretches that fill the time of decoding."""
    clock = decoding_clock(trace)
    return [(b.kind, clock(b.start), clock(b.end)) for b in stretches]


def headline(trace: Trace, stretches: Sequence[waiting.Band]) -> list[ShareOfTime]:
    """Return the shares of the band; empty if nothing was decoded, or the sides are unknown.

    Without a drafter, the kinds in which a drafter works are left out.
    """
    start, end = waiting.decode_window(trace)
    if start == end or not waiting.divided(trace):
        return []
    drafts, apart = (
        any(s.model == "drafter" and s.kind != "prefill" for s in trace.spans),
        waiting.apart(trace),
    )
    labels = {
        "both": "both busy",
        "draft": "target waits for drafter" if apart else "only the drafter works",
        "target": ("drafter waits for target" if apart else "only the target works")
        if drafts
        else "target busy",
        "none": "neither busy" if drafts else "target idle",
    }
    shares = waiting.overlap(trace, stretches)
    parts: list[ShareOfTime] = [
        {"kind": kind, "label": label, "percent": round(100 * shares[kind])} for kind, label in labels.items()
    ]
    return [part for part in parts if drafts or part["percent"] or part["kind"] in ("target", "none")]


def queue(trace: Trace) -> list[TrackView]:
    """Return a track with a span for each time in which as many requests wait; `rows` counts them.

    A run without arrivals has none, nor has one in which no request waited, or that still goes on.
    """
    if trace.footer is None:
        return []
    changes = Counter[int]()
    for request in requests(trace):
        changes[request.arrival] += 1
        end = max(request.arrival, trace.footer.time) if request.begin is None else request.begin
        changes[end] -= 1
    times = sorted(time for time, change in changes.items() if change)
    waiting = accumulate(changes[time] for time in times)
    rows = [(*span, n) for span, n in zip(pairwise(times), waiting, strict=False) if n > 0]
    queued: Any = "queue"  # a kind of the viewer, not of a trace
    spans = [
        Span(-2 - i, ROLE, queued, start, end, "", 0, 0, n, 0, "done")  # -1: tokens without a draft span
        for i, (start, end, n) in enumerate(rows)
    ]
    if not spans:
        return []
    return [
        {
            "device": ROLE,
            "label": "requests that wait",
            "role": ROLE,
            "lanes": 1,
            "spans": _columns(trace, spans, {s.id: "kept" for s in spans}),
            "waits": [],
            "measured": None,
        }
    ]


class RoundView(TypedDict):
    """The fields of `events.Round`, with `t` for its time."""

    step: int
    sequence: int
    mode: str
    drafted: int
    accepted: int
    emitted: int
    span: int
    t: float


def rounds(trace: Trace) -> list[RoundView]:
    clock = decoding_clock(trace)
    return [row_of(RoundView, r, t=clock(r.time)) for r in trace.rounds]
