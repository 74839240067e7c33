"""Outputs as texts, a row or a field on each line, without what differs between two equal runs."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specscope.engine.trace.jsonl import to_json
from specscope.engine.trace.trace import Trace
from specscope.traces.export.perfetto import to_perfetto
from specscope.traces.export.tables import write_csv
from specscope.traces.view.document import view_model

Outputs = Iterator[tuple[str, str]]
"""A text for each name."""
ROOT = Path(__file__).parents[2]
PASSING = {"run_id", "created", "group", "environment", "version", "versions", "seconds", "runs", "run"}
"""Fields that differ between two equal runs, or with the version of a package."""
TIMES = ("time", "start", "end")
WIDTH = 160
"""A longer value has a line for each of its parts."""
NUMBERS = 16
"""On each line of a long list."""


def flat(value: Any) -> str:
    """Return a JSON value as lines `path = value`, so that a difference names its place."""
    return "\n".join(_lines(lasting(value), ""))


def _lines(value: Any, path: str) -> Iterator[str]:
    text = _json(value)
    if len(text) <= WIDTH or not isinstance(value, dict | list):
        yield f"{path or '.'} = {text}"
    elif isinstance(value, dict):
        for key in sorted(value):
            yield from _lines(value[key], f"{path}.{key}")
    elif any(isinstance(one, dict | list) for one in value):
        for place, one in zip(_places(value), value, strict=True):
            yield from _lines(one, f"{path}[{'' if len(_json(one)) <= WIDTH else place}]")
    else:
        for i in range(0, len(value), NUMBERS):
            yield f"{path}[{i}:] = {_json(value[i : i + NUMBERS])}"


def _places(rows: Sequence[Any]) -> Sequence[Any]:
    """Return the rows' names, or their numbers: an inserted row shall change few other lines."""
    for name in ("key", "name"):
        names = [row[name] for row in rows if isinstance(row, dict) and isinstance(row.get(name), str)]
        if len(set(names)) == len(rows):
            return names
    return range(len(rows))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def lasting(value: Any) -> Any:
    """Return JSON values without passing fields, measured rows and the folder of the checkout."""
    if isinstance(value, dict):
        if value.get("kind") == "measured":
            return None
        return {str(k): lasting(v) for k, v in value.items() if k not in PASSING}
    if isinstance(value, str):
        return placeless(value)
    if isinstance(value, Sequence):
        return [lasting(v) for v in value]
    return value


def without_ids(text: str) -> str:
    """Return what a command prints without the ids of its runs and the folder of the checkout."""
    return placeless(re.sub(r"\b[0-9a-f]{12}\b", "ID", text))


def placeless(text: str) -> str:
    return text.replace(str(ROOT), "")


def rows(trace: Trace) -> str:
    """Return the rows of a trace as its file has them; the header is flat."""
    header, *events = map(to_json, trace.events())
    return "\n".join([flat(json.loads(header)), *events])


def of_trace(name: str, trace: Trace, *, view: bool = True, exports: bool = True) -> Outputs:
    """Yield the rows of a trace, the viewer's document and the exports."""
    yield f"{name} · trace", rows(trace)
    if view:
        yield f"{name} · view", document(trace)
    if exports:
        yield f"{name} · perfetto", flat(to_perfetto(trace))
        file = io.StringIO()
        write_csv(trace, "decisions", file)
        yield f"{name} · csv", file.getvalue()


def document(trace: Trace) -> str:
    """Return the viewer's document of a run."""
    found = {("shown" if key == "runs" else key): value for key, value in view_model([trace]).items()}
    return flat(found).replace(trace.header.run_id, "")


def run_of_document(trace: Trace) -> str:
    """Return what the viewer's document has of a run alone."""
    (run,) = view_model([trace])["runs"]
    return flat(run).replace(trace.header.run_id, "")


def decided(trace: Trace) -> str:
    """Return the texts, decisions and rounds of a run of real models, without times and floats."""
    texts = [trace.text] if len(trace.header.prompts) == 1 else [c.token for c in trace.commits]
    kept = {"texts": texts, "decisions": trace.decisions, "rounds": trace.rounds}
    return flat({name: [_whole(row) for row in found] for name, found in kept.items()})


def _whole(row: Any) -> Any:
    if isinstance(row, str | int):
        return row
    return {k: v for k, v in asdict(row).items() if isinstance(v, int | str) and k not in TIMES}
