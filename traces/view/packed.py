"""The document as it is sent: columns in place of lists of rows; `packed.js` reads it.

A list of rows with equal fields repeats every field's name, so that the document of a long run
would be three times as large. Columns hold the same values:

- a list of objects is `{"rows": n, "columns": {field: column}, "absent": {field: [row, ...]}}`;
- a list of tuples is `{"rows": n, "tuples": [column, ...]}`;
- a column is a list of values, or `{"names": [...], "codes": [...]}` if it holds texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traces.view.form import Document

OBJECTS = ("tokens", "ghosts", "rounds")
"""Fields of a run with lists of objects."""


def packed(document: Document | Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with columns in place of the long lists of its runs."""
    return {**document, "runs": [packed_run(run) for run in document["runs"]]}


def packed_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run of a document, or its sections, with columns in place of the long lists."""
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
