"""The spans of a run: forwards, busy devices, and who waits for whom.

A span of any kind works for the *side* of its `model`, drafter or target. A device works on
one span at a time: where its spans overlap, the one that started first counts. So a shared device
is never busy for both sides.

All results lie inside the *decode window*, which starts at the end of the last prefill: earlier
times do not depend on the method. Times are integer nanoseconds since the run's start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import FORWARDS
from specscope.traces.facts.intervals import Interval, merged
from specscope.traces.facts.joined import once

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specscope.engine.trace.events import Device, Span
    from specscope.engine.trace.trace import Trace

Reason = Literal["draft", "verify", "communication", "queue", "host"]
"""Why a device is idle; the first that fits:

`draft`: the drafter works on another device. `verify`: the target works on another device.
`communication`: data is moved between other devices. `queue`: it is not the device's turn: only
devices of the same side work, or a target forward that it has a stage of is on another device.
`host`: no other device works. The gaps between the forwards of one draft are always `host`:
the device already has its job.
"""
BandKind = Literal["both", "draft", "target", "none"]
_Segment: TypeAlias = "tuple[int, int, Span | None]"
_GRID = 2**40
MOST_WAITS = 2_000_000
"""Spans x devices of a document: each device may begin to wait when a span begins or ends."""
Active: TypeAlias = "Counter[tuple[str, bool]]"
"""(side, whether it moves data) -> the number of devices with such a span."""
Working: TypeAlias = frozenset[tuple[str, bool]]
"""The same without the numbers."""
Clock = Callable[[int], float]


class Wait(NamedTuple):
    """An idle stretch of one device, and its reason."""

    device: str
    start: int
    end: int
    reason: Reason


class Band(NamedTuple):
    """A stretch of the decode window, and the sides that work in it."""

    kind: BandKind
    start: int
    end: int


class Unworked(NamedTuple):
    """Nanoseconds of decoding without a forward."""

    inside: int
    """Of all gaps between the forwards of one draft, also while the target works."""
    outside: int
    """In which no device has a forward or such a gap: other kinds of work, and none."""


class Timeline(NamedTuple):
    """What the devices do in the decode window."""

    waits: list[Wait]
    band: list[Band]


@once
def decode_window(trace: Trace) -> Interval:
    """Return (start, end) of decoding; both are equal if nothing was decoded.

    It starts at the end of the last prefill span of step 0 (0 without one). It ends with the last
    work or commit, but not after the footer's time.
    """
    start = max((s.end for s in trace.spans if s.kind == "prefill" and s.step == 0), default=0)
    ends = [s.end for s in trace.spans] + [c.time for c in trace.commits] + [r.time for r in trace.rounds]
    end = max(ends, default=start)
    if trace.footer is not None:
        end = min(end, trace.footer.time)
    return start, max(start, end)


def work(trace: Trace) -> dict[str, dict[str, int]]:
    """Return the nanoseconds of each device in the decode window by kind of work.

    Cancelled work is a kind of its own: `draft, cancelled`. With the waits of a device they sum to
    the window's length.
    """
    lo, hi = decode_window(trace)
    times: dict[str, dict[str, int]] = {d.name: {} for d in trace.header.devices}
    for device, spans in by_device(trace).items():
        kinds = times[device]
        for start, end, span in _segments(spans):
            length = min(end, hi) - max(start, lo)
            if span is not None and length > 0:
                kind = span.kind if span.outcome == "done" else f"{span.kind}, cancelled"
                kinds[kind] = kinds.get(kind, 0) + length
    return times


def time_by_part(trace: Trace) -> dict[str, float]:
    """Return the shares of decoding by what goes on; they sum to 1, and are {} without decoding.

    The first that fits: `target`, a target forward; `drafter`, a forward that drafts; another kind
    of span; `none`.
    """
    lo, hi = decode_window(trace)
    shares = dict[str, float]()
    for start, end, work, _ in _states(trace):
        spans = [span for span in work.values() if span is not None]
        sides = {side(span) for span in spans if span.kind in FORWARDS}
        part = "target" if "target" in sides else "drafter" if sides else spans[0].kind if spans else "none"
        shares[part] = shares.get(part, 0.0) + (end - start) / (hi - lo)
    return shares


def unworked(trace: Trace) -> Unworked:
    inside = outside = 0
    for start, end, work, _ in _states(trace):
        gaps = sum(span is None for span in work.values())
        forward = any(span is not None and span.kind in FORWARDS for span in work.values())
        inside += gaps * (end - start)
        outside += 0 if gaps or forward else end - start
    return Unworked(inside, outside)


def divided(trace: Trace) -> bool:
    """Return whether it is known what each side did: not of steps whose inside is unknown."""
    return all(span.kind != "step" for span in trace.spans)


def band(trace: Trace) -> list[Band]:
    """Return the stretches of the decode window; none if it is unknown which side works."""
    row = list[Band]()
    for start, end, _, active in _states(trace) if divided(trace) else ():
        _extend_band(row, start, end, _band_kind(_working(active)))
    return row


def timeline(trace: Trace) -> Timeline:
    """Return the waits and the band, which need the same pass over the spans.

    UsageError if there are so many spans and devices that neither time nor memory would suffice.
    """
    if len(trace.spans) * len(trace.header.devices) > MOST_WAITS:
        raise UsageError(
            f"run {trace.header.run_id} has {len(trace.spans)} spans on {len(trace.header.devices)} devices, too many to "
            f"show its waits (at most {MOST_WAITS} spans x devices)"
        )
    if not divided(trace):
        return Timeline([], [])
    waits_of: dict[str, list[Wait]] = {d.name: [] for d in trace.header.devices}
    roles = {d.name: d.role for d in trace.header.devices}
    stages, row = _stages(trace), list[Band]()
    known: dict[Working, tuple[BandKind, dict[str, Reason]]] = {}
    for start, end, work, active in _states(trace):
        if (working := _working(active)) not in known:
            known[working] = _band_kind(working), {role: _reason(role, working) for role in {*roles.values()}}
        kind, reasons = known[working]
        _extend_band(row, start, end, kind)
        staged = {d for s in work.values() if stages and s for d in stages.get(s.id - s.rank, ())}
        for device, role in roles.items():
            if work.get(device) is not None:
                continue
            reason: Reason = "host" if device in work else "queue" if device in staged else reasons[role]
            idle = waits_of[device]
            if idle and idle[-1].end == start and idle[-1].reason == reason:
                idle[-1] = Wait(device, idle[-1].start, end, reason)
            else:
                idle.append(Wait(device, start, end, reason))
    return Timeline([w for idle in waits_of.values() for w in idle], row)


def _working(active: Active) -> Working:
    return frozenset(one for one, number in active.items() if number)


def _band_kind(working: Working) -> BandKind:
    sides = {side for side, _ in working}
    return "both" if len(sides) == 2 else "draft" if "drafter" in sides else "target" if sides else "none"


def _extend_band(row: list[Band], start: int, end: int, kind: BandKind) -> None:
    if row and row[-1].kind == kind:
        row[-1] = Band(kind, row[-1].start, end)
    else:
        row.append(Band(kind, start, end))


def overlap(trace: Trace, stretches: Iterable[Band] | None = None) -> dict[str, float]:
    """Return each band kind's share of the decode window; an empty window is all `none`.

    The shares are multiples of 2**-40, which floats add without rounding: they sum to exactly 1 in
    any order.
    """
    total = {"both": 0, "draft": 0, "target": 0, "none": 0}
    for kind, start, end in band(trace) if stretches is None else stretches:
        total[kind] += end - start
    whole = sum(total.values())
    if not whole:
        return {"both": 0.0, "draft": 0.0, "target": 0.0, "none": 1.0}
    cuts = [_GRID * part // whole for part in accumulate(total.values(), initial=0)]
    return {kind: (end - start) / _GRID for kind, (start, end) in zip(total, pairwise(cuts), strict=True)}


def apart(trace: Trace) -> bool:
    """Return whether a drafter has a device of its own, so that one side can wait for the other."""
    return any(device.role == "drafter" for device in trace.header.devices)


def occupancy(trace: Trace) -> dict[str, float]:
    lo, hi = decode_window(trace)
    shares = {d.name: 0.0 for d in trace.header.devices}
    for device, intervals in busy(trace).items() if hi > lo else ():
        for start, end in intervals:
            shares[device] += max(0, min(end, hi) - max(start, lo)) / (hi - lo)
    return {device: min(1.0, share) for device, share in shares.items()}


def _stages(trace: Trace) -> dict[int, set[str]]:
    """Return the devices that share a target forward, by the id of the leader's span."""
    devices: dict[int, set[str]] = {}
    for span in trace.spans:
        if side(span) == "target":
            devices.setdefault(span.id - span.rank, set()).add(span.device)
    return {leader: names for leader, names in devices.items() if len(names) > 1}


def _reason(role: str, others: Working) -> Reason:
    """Return why a device waits that does not work, while others do."""
    kinds = {"communication" if moves else side for side, moves in others}
    if "drafter" in kinds and role != "drafter":
        return "draft"
    if "target" in kinds and role != "target":
        return "verify"
    if "communication" in kinds:
        return "communication"
    return "queue" if kinds else "host"


def _segments(spans: Iterable[Span]) -> Iterator[_Segment]:
    """Yield (start, end, span) without overlaps; span None for the gaps inside one draft."""
    before: Span | None = None
    free = 0
    for span in sorted(spans, key=lambda s: (s.start, s.id)):
        if span.end <= max(free, span.start):
            continue
        if before and span.start > free and _of_one_draft(before, span):
            yield free, span.start, None
        yield max(free, span.start), span.end, span
        before, free = span, span.end


def _of_one_draft(before: Span, span: Span) -> bool:
    kinds = before.kind, span.kind
    return before.step == span.step and (kinds == ("draft", "draft") or kinds[1] == "branch")


def _states(trace: Trace) -> Iterator[tuple[int, int, dict[str, Span | None], Active]]:
    """Yield (start, end, {device: span}, works) of the decode window; both mappings then change."""
    lo, hi = decode_window(trace)
    cuts: list[tuple[int, int, str, Span | None]] = []
    for device, spans in by_device(trace).items():
        for start, end, span in _segments(spans):
            cuts += ((start, 1, device, span), (end, 0, device, span))
    cuts.sort(key=lambda c: c[:2])
    cuts.append((hi, 0, "", None))
    work: dict[str, Span | None] = {}
    active: Active = Counter()
    last = lo
    for time, starts, device, span in cuts:
        now = min(max(time, lo), hi)
        if now > last:
            yield last, now, work, active
            last = now
        if span is not None:
            active[side(span), span.kind == "communicate"] += 1 if starts else -1
        if starts:
            work[device] = span
        else:
            work.pop(device, None)


@once
def by_device(trace: Trace) -> dict[str, list[Span]]:
    spans: dict[str, list[Span]] = {}
    for span in trace.spans:
        spans.setdefault(span.device, []).append(span)
    return spans


def side(span: Span) -> str:
    return "drafter" if span.model == "drafter" else "target"


def busy(trace: Trace) -> dict[str, list[Interval]]:
    """Return when each device with a span works."""
    found = by_device(trace).items()
    return {device: merged((s.start, s.end) for s in spans if s.end > s.start) for device, spans in found}


def forwards(trace: Trace) -> list[Span]:
    """Return one span per forward while decoding.

    Of a forward that several devices share, it is the leader's span, as long as the time in which
    any of them works.
    """
    shares: dict[int, list[Span]] = {}
    for span in trace.spans:
        if span.kind in FORWARDS:
            shares.setdefault(span.id - span.rank, []).append(span)
    leaders = [s for s in trace.spans if s.kind in FORWARDS and s.rank == 0]
    return [replace(s, end=s.start + _covered(shares[s.id])) if len(shares[s.id]) > 1 else s for s in leaders]


def _covered(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in merged((s.start, s.end) for s in spans))


def decoding_clock(trace: Trace) -> Clock:
    """Return the function ns since the run's start -> ms since decoding began, to whole us."""
    start = decode_window(trace)[0]
    return lambda ns: round((ns - start) / 1000) / 1000


def working_devices(trace: Trace) -> list[Device]:
    active = {s.device for s in trace.spans if s.kind != "prefill"}
    return [d for d in trace.header.devices if "target" in d.role or d.name in active]
