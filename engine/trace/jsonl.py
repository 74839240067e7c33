"""A trace as JSONL: one event per line. Standard library only.

A file without a footer is of a run that ended badly; its status is `incomplete`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import IO, Any, get_args

from engine.errors import shown
from engine.files import parse_json
from engine.trace.checking import check_types
from engine.trace.events import SCHEMA, Device, Event, Footer, Header, Row
from engine.trace.trace import Trace

_TYPES: dict[str, type[Any]] = {t.tag: t for t in (Header, *get_args(Row), Footer)}


def to_json(event: Event) -> str:
    """Return the event as one JSONL line without the line end; not-a-number becomes null."""
    row = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(event).items()}
    return json.dumps({"event": event.tag, **row}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> Event:
    """Return the event of one line; ValueError if its kind, schema or fields are unknown."""
    row = _parse(line)
    tag = row.pop("event", None) if isinstance(row, dict) else None
    kind = _TYPES.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise ValueError(f"not a trace event: {shown(line)}")
    schema = row.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise ValueError(f"the trace has schema {schema}, this SpecScope reads up to {SCHEMA}; please update")
    _check_names(kind, kind.tag, row)
    try:
        event = kind(**{k: _devices(v) if k == "devices" else _frozen(v) for k, v in row.items()})
    except TypeError as e:
        raise ValueError(f"a {kind.tag} is incomplete: {e}") from None
    except RecursionError:
        raise ValueError(f"a {kind.tag} nests too deeply") from None
    check_types([event])
    return event


def _parse(line: str) -> Any:
    try:
        return parse_json(line)
    except json.JSONDecodeError as e:
        raise ValueError(f"{e.msg} at character {e.pos + 1}") from None


def _check_names(kind: type[Any], name: str, row: dict[str, Any]) -> None:
    if unknown := sorted(set(row) - {f.name for f in fields(kind)}):
        first = unknown[0] if unknown[0].isidentifier() and len(unknown[0]) <= 60 else shown(unknown[0])
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ValueError(f"a {name} has no field {first}{more}")


def _devices(rows: Any) -> tuple[Device, ...]:
    if not isinstance(rows, list):
        raise ValueError(f"devices of a header is {shown(rows)}")
    devices = list[Device]()
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"a device is {shown(row)}")
        _check_names(Device, "device", row)
        try:
            devices.append(Device(**row))
        except TypeError as e:
            raise ValueError(f"a device is incomplete: {e}") from None
    check_types(devices)
    return tuple(devices)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def write_jsonl(trace: Trace, file: IO[str]) -> None:
    for event in trace.events():
        file.write(to_json(event) + "\n")


def read_jsonl(lines: Iterable[str]) -> Trace:
    """Read one trace; without a footer it is incomplete. ValueError names a line without event."""

    def parse() -> Iterator[Event]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield from_json(line)
                except ValueError as e:
                    raise ValueError(f"line {number}: {e}") from None

    trace = Trace.of(parse())
    trace.close_incomplete()
    return trace
