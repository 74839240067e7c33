"""The document of long runs: a part of each, and shares of merged bars for the rest.

The page opens it at once, and asks for other windows while the whole document is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict, cast

from specscope.traces.facts.waiting import Timeline, decode_window, decoding_clock, timeline
from specscope.traces.judge.verdict import NONE
from specscope.traces.view import all_sections
from specscope.traces.view.document import VERSION, heading, sections
from specscope.traces.view.figures import figure_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.events import Device
    from specscope.traces.database.windows import Bins, Extent, RunWindow

PIECEMEAL = ("tokens", "ghosts", "rounds")
"""Rows with a time that are cut to the window, as those of timed sections are."""


class Shares(TypedDict):
    """The work of one style on a device."""

    kind: str
    lost: bool
    cancelled: bool
    busy: list[float]


class BinsView(TypedDict):
    """A window as bins; times in ms as in the document."""

    low: float
    width: float
    spans: list[int]
    tracks: dict[str, list[Shares]]
    tokens: list[int]


def part_document(parts: Sequence[tuple[RunWindow, Extent]]) -> dict[str, Any]:
    """Return the document of these parts; `packed` takes it.

    The figures, and whatever else needs a whole run, are empty.
    """
    runs = [part_run(part, size) for part, size in parts]
    return {
        "model": VERSION,
        "state": "ready",
        "axis": {"min": min(r["from"] for r in runs), "max": max(r["to"] for r in runs)},
        "clocks": sorted({part.trace.header.clock for part, _ in parts}),
        "figures": figure_rows(batches=any(len(part.trace.header.prompts) > 1 for part, _ in parts)),
        "race": "",
        "runs": runs,
    }


def part_run(part: RunWindow, size: Extent) -> dict[str, Any]:
    return {
        **heading(part.trace, False),
        **part_sections(part, size),
        "from": _ms(size.start, size),
        "to": _ms(size.end, size),
        "long": {"spans": size.spans, "tokens": size.tokens},
        "baseline": False,
        "fastest": False,
        "over": None,
        "reason": "",
        "batch": len(part.trace.header.prompts),
        "metrics": {"occupancy": {}},
        "figures": {},
        "passes": None,
        "verdict": NONE,
        "identity": None,
    }


def part_sections(part: RunWindow, size: Extent) -> dict[str, Any]:
    trace, clock = part.trace, decoding_clock(part.trace)
    if part.high < size.end:  # after the last span that was read, the waits are not known
        part = part._replace(high=min(part.high, decode_window(trace)[1]))
    found = sections(trace, _clipped(timeline(trace), part), False, _devices(part, size), part.around)
    low, high = clock(part.low), clock(part.high)
    rows = cast("dict[str, Any]", found)
    _count(rows["tokens"], part, clock)
    timed = [name for name, section in all_sections().items() if section.timed]
    inside = {name: [row for row in rows[name] if low <= row["t"] <= high] for name in (*PIECEMEAL, *timed)}
    return {**rows, **inside, "headline": [], "part": {"from": low, "to": high}}


def _count(tokens: list[dict[str, Any]], part: RunWindow, clock: Any) -> None:
    """Number the tokens as in the whole run, and count their gaps from the commits before."""
    firsts: dict[int, float] = {}
    for token in tokens:
        token["index"] += part.around.commits
        first = firsts.setdefault(token["sequence"], token["t"])
        if token["t"] == first and token["sequence"] in part.around.last:
            token["gap"] = round(token["t"] - clock(part.around.last[token["sequence"]]), 3)


def _devices(part: RunWindow, size: Extent) -> list[Device]:
    """Return the devices with a track in the whole run."""
    return [d for d in part.trace.header.devices if "target" in d.role or d.name in size.working]


def _clipped(known: Timeline, part: RunWindow) -> Timeline:
    """Cut waits and band to the part: outside of it the spans are not known."""
    low, high = part.low, part.high
    waits = [w._replace(start=max(low, w.start), end=min(high, w.end)) for w in known.waits]
    row = [b._replace(start=max(low, b.start), end=min(high, b.end)) for b in known.band]
    return Timeline([w for w in waits if w.start < w.end], [b for b in row if b.start < b.end])


def bins_view(bins: Bins, size: Extent) -> BinsView:
    """Return bins as shares: of the drafts of a bin, the share of its rejected tokens is lost."""
    lost = [0.0] * len(bins.spans)
    share = 0.0
    for i, (drafted, accepted) in enumerate(zip(bins.drafted, bins.accepted, strict=True)):
        share = 1 - accepted / drafted if drafted else share
        lost[i] = share
    tracks: dict[str, list[Shares]] = {}
    for row in bins.work:
        busy = [time / bins.width for time in row.busy]
        styles = tracks.setdefault(row.device, [])
        if row.kind != "draft" or row.cancelled:
            styles.append(_shares(row.kind, row.cancelled, row.cancelled, busy))
            continue
        styles.append(_shares("draft", False, False, [b * (1 - s) for b, s in zip(busy, lost, strict=True)]))
        styles.append(_shares("draft", True, False, [b * s for b, s in zip(busy, lost, strict=True)]))
    return {
        "low": _ms(bins.low, size),
        "width": bins.width / 1e6,
        "spans": bins.spans,
        "tracks": tracks,
        "tokens": bins.tokens,
    }


def _shares(kind: str, lost: bool, cancelled: bool, busy: list[float]) -> Shares:
    shares = [round(b, 3) for b in busy]
    return {"kind": kind, "lost": lost, "cancelled": cancelled, "busy": shares}


def _ms(ns: int, size: Extent) -> float:
    return round((ns - size.begin) / 1e6, 3)
