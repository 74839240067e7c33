"""The document as it is sent, and the new part of a run in progress (`delta`).

The document has columns in place of lists of rows; `packed.js` reads it.
A list of rows with equal fields repeats every field's name, so that the document of a long run
would be three times as large. Columns hold the same values:

- a list of objects is `{"rows": n, "columns": {field: column}, "absent": {field: [row, ...]}}`;
- a list of tuples is `{"rows": n, "tuples": [column, ...]}`;
- a column is a list of values, or `{"names": [...], "codes": [...]}` if it holds texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from specscope.engine.trace.events import Commit, Span
from specscope.traces.view import columns_of
from specscope.traces.view.tokens import CommitView, commit_view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specscope.engine.trace.events import Event
    from specscope.traces.view.document import ViewDocument

OBJECTS = ("tokens", "ghosts", "rounds", "lengths")


def packed(document: ViewDocument | Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "runs": [packed_run(run) for run in document["runs"]]}


def packed_run(run: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **run,
        **{name: _objects(run[name]) for name in OBJECTS},
        "band": _tuples(run["band"]),
        "tracks": [_track(track) for track in run["tracks"]],
    }


def _track(track: Mapping[str, Any]) -> dict[str, Any]:
    spans = {name: _column(values) for name, values in track["spans"].items()}
    return {**track, "spans": spans, "waits": _tuples(track["waits"])}


def _objects(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shapes = {tuple(row) for row in rows}
    names = list(dict.fromkeys(name for shape in sorted(shapes) for name in shape))
    partial = [name for name in names if any(name not in shape for shape in shapes)]
    return {
        "rows": len(rows),
        "columns": {name: _column([row.get(name) for row in rows]) for name in names},
        "absent": {name: [i for i, row in enumerate(rows) if name not in row] for name in partial},
    }


def _tuples(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    return {"rows": len(rows), "tuples": [_column(values) for values in zip(*rows, strict=True)]}


def _column(values: Sequence[Any]) -> Any:
    if not any(isinstance(value, str) for value in values):
        return list(values)
    codes: dict[Any, int] = {}
    numbers = [codes.setdefault(value, len(codes)) for value in values]
    return {"names": list(codes), "codes": numbers}


class NewSpans(TypedDict):
    """Spans in the order they ended, as in `events.Span`; times in ms since the run's start."""

    id: list[int]
    device: list[str]
    kind: list[str]
    start: list[float]
    end: list[float]
    step: list[int]
    rows: list[int]
    context: list[int]
    outcome: list[str]


class Delta(TypedDict):
    """The new part of a run."""

    run: str
    cursor: int
    ended: bool
    spans: NewSpans
    tokens: list[CommitView]
    """`t` is ms since the run's start."""


def delta(run_id: str, events: Iterable[Event], cursor: int, *, ended: bool) -> Delta:
    """Return the spans and tokens among the events since the last delta.

    `cursor` is the one after them; `ended`: no event will follow.
    """
    rows = list(events)
    spans = [e for e in rows if isinstance(e, Span)]
    return {
        "run": run_id,
        "cursor": cursor,
        "ended": ended,
        "spans": columns_of(
            NewSpans, spans, start=[_ms(s.start) for s in spans], end=[_ms(s.end) for s in spans]
        ),
        "tokens": [commit_view(e, e.text, _ms(e.time)) for e in rows if isinstance(e, Commit)],
    }


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)
