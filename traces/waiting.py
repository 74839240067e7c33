"""Who waits for whom: derived from the spans of a run, never recorded. Pure functions on a `Trace`.

A span works for one *side*, that of its `model`: the drafter's or the target's. This holds for every kind, so a
`sample` or `communicate` span counts for the model on whose behalf it ran. A device works on one thing at a time:
where its spans overlap, the one that started first has it. So one shared device is never busy for both sides.

Everything lies inside the *decode window*, which starts where the prefill of all models ends: times before it say
nothing about a method. Times are integer nanoseconds since the run's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from engine.trace.events import Span
    from engine.trace.trace import Trace

Reason = Literal["draft", "verify", "communication", "queue", "host"]
"""What an idle device waits for, in this order of precedence:

`draft` the drafter works on another device; `verify` the target does; `communication` data is moved elsewhere;
`queue` it has not been given a turn: only devices of its own side work, or a target forward that it has a stage of is on
another device; `host` no other device works.
The gaps between the forwards of one draft belong to the host whatever else runs: the device has its job already.
"""
BandKind = Literal["both", "draft", "target", "none"]
Interval: TypeAlias = tuple[int, int]
_Segment: TypeAlias = "tuple[int, int, Span | None]"
_GRID = 2**40


class Wait(NamedTuple):
    """An idle stretch of one device, and what it waits for."""

    device: str
    start: int
    end: int
    reason: Reason


class Band(NamedTuple):
    """A stretch of the decode window, and which sides work in it."""

    kind: BandKind
    start: int
    end: int


def decode_window(trace: Trace) -> Interval:
    """Return where decoding starts and ends.

    It starts at the end of the last prefill span of step 0 (0 without one) and ends with the last work or commit,
    at the footer's time at most; both are equal when nothing was decoded.
    """
    start = max((s.end for s in trace.spans if s.kind == "prefill" and s.step == 0), default=0)
    ends = [s.end for s in trace.spans] + [c.time for c in trace.commits] + [r.time for r in trace.rounds]
    end = max(ends, default=start)
    if trace.footer is not None:
        end = min(end, trace.footer.time)
    return start, max(start, end)


def busy(trace: Trace, device: str) -> list[Interval]:
    """Return the merged intervals in which the device works, over the whole run."""
    merged: list[Interval] = []
    for start, end in sorted((s.start, s.end) for s in trace.spans if s.device == device and s.end > s.start):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def waits(trace: Trace) -> list[Wait]:
    """Return every idle stretch of every device in the decode window, by device, then by time."""
    found: dict[str, list[Wait]] = {d.name: [] for d in trace.header.devices}
    roles = {d.name: d.role for d in trace.header.devices}
    stages = _stages(trace)
    for start, end, work in _states(trace):
        for device, role in roles.items():
            if work.get(device) is not None:
                continue
            others = [s for name, s in work.items() if name != device and s is not None]
            passing = any(device in stages.get(s.id - s.rank, ()) for s in others)
            reason = "host" if device in work else "queue" if passing else _reason(role, others)
            row = found[device]
            if row and row[-1].end == start and row[-1].reason == reason:
                row[-1] = row[-1]._replace(end=end)
            else:
                row.append(Wait(device, start, end, reason))
    return [w for row in found.values() for w in row]


def band(trace: Trace) -> list[Band]:
    """Return which sides work when: adjacent stretches that fill the decode window."""
    row: list[Band] = []
    for start, end, work in _states(trace):
        sides = {side(s) for s in work.values() if s is not None}
        kind: BandKind = (
            "both" if len(sides) == 2 else "draft" if "drafter" in sides else "target" if sides else "none"
        )
        if row and row[-1].kind == kind:
            row[-1] = row[-1]._replace(end=end)
        else:
            row.append(Band(kind, start, end))
    return row


def overlap(trace: Trace) -> dict[str, float]:
    """Return the share of the decode window for each kind of band; an empty window is all `none`.

    The shares sum to exactly 1 in any order: the unit is cut on a grid of 2**-40, whose sums floats hold exactly.
    """
    total = {"both": 0, "draft": 0, "target": 0, "none": 0}
    for kind, start, end in band(trace):
        total[kind] += end - start
    whole = sum(total.values())
    if not whole:
        return {"both": 0.0, "draft": 0.0, "target": 0.0, "none": 1.0}
    shares: dict[str, float] = {}
    before = 0
    for kind, part in total.items():
        cut = _GRID * before // whole
        before += part
        shares[kind] = (_GRID * before // whole - cut) / _GRID
    return shares


def occupancy(trace: Trace, bins: int, window: Interval | None = None) -> dict[str, list[float]]:
    """Return the busy share of each device in equal bins of a window, the decode window unless given."""
    lo, hi = window or decode_window(trace)
    shares = {d.name: [0.0] * bins for d in trace.header.devices}
    if hi <= lo:
        return shares
    width = (hi - lo) / bins
    for device, row in shares.items():
        for start, end in busy(trace, device):
            for i in range(int((max(start, lo) - lo) / width), bins):
                left, right = lo + i * width, lo + (i + 1) * width
                if left >= end:
                    break
                row[i] = min(1.0, row[i] + max(0.0, min(end, right) - max(start, left)) / width)
    return shares


def wasted(trace: Trace) -> list[Span]:
    """Return the work that came to nothing: cancelled spans, and draft spans none of whose tokens was accepted.

    While the run still goes on, a draft without a verdict is not called wasted yet.
    """
    judged = {d.draft_span for d in trace.decisions}
    useful = {d.draft_span for d in trace.decisions if d.outcome == "accepted"}

    def lost(span: Span) -> bool:
        if span.outcome == "cancelled":
            return True
        leader = span.id - span.rank  # what several devices draft together is told of their leader
        undecided = trace.footer is None and leader not in judged
        return span.kind == "draft" and leader not in useful and not undecided

    return [s for s in trace.spans if lost(s)]


def side(span: Span) -> str:
    """Return the side a span works for: `drafter` or `target`."""
    return "drafter" if span.model == "drafter" else "target"


def _stages(trace: Trace) -> dict[int, set[str]]:
    """Return the devices that do a target forward together, by the leader's span."""
    found: dict[int, set[str]] = {}
    for span in trace.spans:
        if side(span) == "target":
            found.setdefault(span.id - span.rank, set()).add(span.device)
    return {leader: devices for leader, devices in found.items() if len(devices) > 1}


def _reason(role: str, others: Iterable[Span]) -> Reason:
    kinds = {"communication" if s.kind == "communicate" else side(s) for s in others}
    if "drafter" in kinds and role != "drafter":
        return "draft"
    if "target" in kinds and role != "target":
        return "verify"
    if "communication" in kinds:
        return "communication"
    return "queue" if kinds else "host"


def _segments(spans: Iterable[Span]) -> Iterator[_Segment]:
    """Yield what one device works on, without overlaps; None in the gaps between the forwards of one draft."""
    before: Span | None = None
    free = 0
    for span in sorted(spans, key=lambda s: (s.start, s.id)):
        if span.end <= max(free, span.start):
            continue
        if before and span.start > free and before.kind == span.kind == "draft" and before.step == span.step:
            yield free, span.start, None
        yield max(free, span.start), span.end, span
        before, free = span, span.end


def _states(trace: Trace) -> Iterator[tuple[int, int, dict[str, Span | None]]]:
    """Yield (start, end, {device: what it works on}) through the decode window; the mapping changes afterwards."""
    lo, hi = decode_window(trace)
    by_device: dict[str, list[Span]] = {}
    for span in trace.spans:
        by_device.setdefault(span.device, []).append(span)
    cuts: list[tuple[int, int, str, Span | None]] = []
    for device, spans in by_device.items():
        for start, end, span in _segments(spans):
            cuts += ((start, 1, device, span), (end, 0, device, None))
    cuts.sort(key=lambda c: c[:2])
    cuts.append((hi, 0, "", None))
    work: dict[str, Span | None] = {}
    last = lo
    for time, starts, device, span in cuts:
        now = min(max(time, lo), hi)
        if now > last:
            yield last, now, work
            last = now
        if starts:
            work[device] = span
        else:
            work.pop(device, None)
