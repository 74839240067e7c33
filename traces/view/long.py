"""Documents of long stored runs: all spans and rounds at once, the other rows by ranges of rounds.

The page opens the first document, then asks for what spans alone show, and for ranges of rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from specscope.engine.trace.events import Mode, SpanKind, SpanOutcome
from specscope.traces.facts.fates import JUDGED
from specscope.traces.facts.intervals import lanes
from specscope.traces.facts.waiting import Timeline, timeline, working_devices
from specscope.traces.view import all_sections
from specscope.traces.view.aligned import aligned
from specscope.traces.view.document import frame, sections
from specscope.traces.view.heading import heading
from specscope.traces.view.packed import numeric, packed_run
from specscope.traces.view.tracks import (
    band,
    batches,
    fate,
    headline,
    measured,
    tracks,
    undecided,
    waits_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specscope.engine.trace.trace import Trace
    from specscope.traces.database.long import Extent, Numbers, RangeRows, SpanTable, StoredOutput
    from specscope.traces.view.aligned import RowView

KINDS = get_args(SpanKind)
OUTCOMES, MODES = (get_args(get_args(names)[1]) for names in (SpanOutcome, Mode))
PREFILL = KINDS.index("prefill")
STEPPED = ("tokens", "ghosts", "rounds")
"""Lists beside the sections whose rows have a step; they are cut to the range, too."""


def long_document(
    runs: Sequence[Mapping[str, Any]], sizes: Sequence[Extent], outputs: Sequence[StoredOutput]
) -> dict[str, Any]:
    """Return the document of packed runs.

    `sizes` and `outputs` are theirs. An aligned sequence has the number of its tokens, `length`,
    and the ms at which the first was committed, `begin`. Without outputs, no runs are aligned.
    """

    def sized(rows: Sequence[RowView]) -> list[dict[str, Any]]:
        found = list[dict[str, Any]]()
        for row, size, written in zip(rows, sizes, outputs, strict=True):
            sequence = row["sequence"]
            begin = _ms(written.began[sequence], size) if sequence >= 0 else 0.0
            found.append({**row, "length": len(written.token_ids(sequence)), "begin": begin})
        return found

    groups = [{"rows": sized(group["rows"])} for group in aligned(outputs)]
    return {**frame(runs, "ready"), "aligned": groups, "runs": runs}


def long_run(
    size: Extent, part: RangeRows, table: SpanTable, judged: Mapping[str, Numbers]
) -> dict[str, Any]:
    """Return a packed run: all its spans and rounds, and the other rows of one range of rounds."""
    trace, found = part.trace, _range(part)
    names = [device.name for device in trace.header.devices]
    working = {names[place] for place in np.unique(table.device[table.kind != PREFILL]) if place < len(names)}
    devices = [d for d in trace.header.devices if "target" in d.role or d.name in working]
    run = packed_run({**heading(trace, False), **found, "tracks": tracks(trace, (), devices)})
    for track in run["tracks"]:
        track["spans"], track["lanes"] = _spans(trace, size, table, names.index(track["device"]))
    return {
        **run,
        "headline": [],
        "rounds": _rounds(size, judged),
        "from": _ms(size.start, size),
        "to": _ms(size.end, size),
        "long": {"spans": size.spans, "tokens": size.tokens},
    }


def range_view(part: RangeRows) -> dict[str, Any]:
    """Return the tokens of a range of rounds, and the sections that are made of such rows."""
    kept = {*STEPPED, "pieces", "part", *_sections_of("rounds")} - {"rounds"}
    return packed_run({name: rows for name, rows in _range(part).items() if name in kept})


def _range(part: RangeRows) -> dict[str, Any]:
    found = cast("dict[str, Any]", sections(part.trace, Timeline([], []), False, (), "rounds"))
    names = (*STEPPED, *_sections_of("rounds"))
    inside = {name: [row for row in found[name] if _inside(row, part)] for name in names}
    for index, token in enumerate(inside["tokens"], part.before):
        token["index"] = index
    return {**found, **inside, "part": {"first": part.first, "last": part.last}}


def _sections_of(need: str) -> list[str]:
    return [name for name, section in all_sections().items() if section.need == need]


def _inside(row: Mapping[str, Any], part: RangeRows) -> bool:
    """Return whether a row is of the range; sources and others without a step always are."""
    return part.first <= row.get("step", part.first) <= part.last


def spans_view(trace: Trace) -> dict[str, Any]:
    """Return what spans and rounds show of a run: waits, loads, the band, and some sections."""
    known = timeline(trace)
    made = {name: all_sections()[name].of(trace, "spans", redacted=False) for name in _sections_of("spans")}
    idle, loads = waits_of(trace, known.waits), measured(trace)
    shown = [
        {"device": device.name, "waits": idle[device.name], "measured": loads.get(device.name)}
        for device in working_devices(trace)
    ]
    run = {**made, "tracks": shown, "band": band(trace, known.band)}
    return packed_run({**run, "headline": headline(trace, known.band)})


def _spans(trace: Trace, size: Extent, table: SpanTable, place: int) -> tuple[dict[str, Any], int]:
    """Return the packed spans of a device, and how many lanes they take."""
    first, last = table.device.searchsorted([place, place + 1])
    own = table._make(column[first:last] for column in table)
    lane = np.zeros(len(own.id), np.int64)
    if (own.start[1:] < own.end[:-1]).any():
        lane = np.array(lanes(zip(own.start.tolist(), own.end.tolist(), strict=True)))
    sizes = (len(KINDS), len(OUTCOMES), len(JUDGED))
    codes = np.ravel_multi_index((own.kind, own.outcome, own.judged), sizes)
    looks, fates = np.unique(codes, return_inverse=True)
    names = [
        fate(KINDS[kind], OUTCOMES[outcome], JUDGED[judged], undecided(trace))
        for kind, outcome, judged in zip(*np.unravel_index(looks, sizes), strict=True)
    ]
    found = {
        "id": numeric(own.id),
        "kind": _texts(own.kind, KINDS),
        "start": _times(own.start, size),
        "end": _times(own.end, size),
        "lane": numeric(lane),
        "step": numeric(own.step),
        "rows": numeric(own.rows),
        "context": numeric(own.context),
        "fate": {"names": names, "codes": numeric(fates)},
    }
    batch = batches(trace.header, [KINDS[code] for code in own.kind.tolist()], own.step.tolist())
    spans = found if batch is None else {**found, "batch": numeric(np.array(batch))}
    return spans, int(lane.max(initial=0)) + 1


def _rounds(size: Extent, columns: Mapping[str, Numbers]) -> dict[str, Any]:
    plain = ("step", "sequence", "drafted", "accepted", "emitted", "span")
    found = {name: numeric(columns[name]) for name in plain}
    found |= {"mode": _texts(columns["mode"], MODES), "t": _times(columns["time"], size)}
    return {"rows": len(columns["step"]), "columns": found, "absent": {}}


def _texts(codes: Numbers, names: Sequence[str]) -> dict[str, Any]:
    return {"names": list(names), "codes": numeric(codes)}


def _times(column: Numbers, size: Extent) -> dict[str, Any]:
    return numeric(np.rint((column - size.begin) / 1000).astype(np.int64), per=1000)


def _ms(ns: int, size: Extent) -> float:
    return round((ns - size.begin) / 1000) / 1000
