"""The document as it is sent, and the new part of a run in progress (`delta`).

The document has columns in place of lists of rows; `packed.js` reads it.
A list of rows with equal fields repeats every field's name, so that the document of a long run
would be three times as large. Columns hold the same values:

- a list of objects is `{"rows": n, "columns": {field: column}, "absent": {field: [row, ...]}}`;
- a list of tuples is `{"rows": n, "tuples": [column, ...]}`;
- a column of numbers is `{"type": "Int16", "data": base64, "per": n}`: the bytes of a typed array,
  whose numbers are divided by n;
- a column of texts is `{"names": [...], "codes": column}`; another column is a list of values.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from specscope.engine.trace.events import Commit, Span
from specscope.traces.view import columns_of
from specscope.traces.view.tokens import CommitView, commit_view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from specscope.engine.trace.events import Event
    from specscope.traces.view.document import ViewDocument

_TYPES = {"Int8": ("<i1", 7), "Int16": ("<i2", 15), "Int32": ("<i4", 31), "Float64": ("<f8", 1024)}
"""Types of JavaScript's arrays: numpy's name, and the bits of the largest number."""


def packed(document: ViewDocument | Mapping[str, Any]) -> dict[str, Any]:
    return {**document, "runs": [packed_run(run) for run in document["runs"]]}


def packed_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run, or those of its sections that are given."""
    return {name: _FORMS[name](value) if name in _FORMS else value for name, value in run.items()}


def _track(track: Mapping[str, Any]) -> dict[str, Any]:
    found = {**track, "waits": _tuples(track["waits"])}
    if "spans" in track:
        found["spans"] = {name: _column(values) for name, values in track["spans"].items()}
    return found


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
    kinds = {type(value) for value in values}
    if str in kinds:
        codes: dict[Any, int] = {}
        numbers = [codes.setdefault(value, len(codes)) for value in values]
        return {"names": list(codes), "codes": numeric(np.array(numbers))}
    return _numbers(values) if kinds and kinds <= {int, float} else list(values)


def _numbers(values: Sequence[float]) -> Any:
    """Return a column of numbers; times, which are whole us, become integers."""
    column = np.array(values)
    if column.dtype.kind == "f":
        whole = np.rint(1000 * column)
        if (np.abs(whole) < 2**53).all() and (whole / 1000 == column).all():
            return numeric(whole.astype(np.int64), per=1000)
    return numeric(column) if column.dtype.kind in "if" and np.isfinite(column).all() else list(values)


def numeric(column: NDArray[Any], *, per: int = 1) -> dict[str, Any]:
    """Return a packed column of finite numbers, in the smallest type that holds them."""
    ends = (int(column.min(initial=0)), int(column.max(initial=0))) if column.dtype.kind == "i" else (2**31,)
    most = max(map(abs, ends))
    name = next((name for name, (_, bits) in _TYPES.items() if most < 2**bits), "Float64")
    data = column.astype(_TYPES[name][0]).tobytes()
    return {"type": name, "data": b64encode(data).decode(), "per": per}


_FORMS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("tokens", "ghosts", "rounds", "lengths"), _objects),
    "band": _tuples,
    "tracks": lambda tracks: [_track(track) for track in tracks],
}


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
