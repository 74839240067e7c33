"""A trace as JSONL: one event per line, with checked values. Standard library only.

A file without a footer is of a run that ended badly; its status is `incomplete`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import IO, Any, Literal, get_args, get_origin

from specscope.engine.errors import shown
from specscope.engine.files import parse_json
from specscope.engine.schema import MOST_LEVELS, MOST_SETTINGS, Range, all_fit, fits
from specscope.engine.trace.events import KINDS, SCHEMA, Device, Event, Footer, Header, Line, types_of
from specscope.engine.trace.trace import Trace

_TYPES: dict[str, type[Any]] = {t.tag: t for t in (Header, *KINDS, Footer)}
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_EMPTY = '""'

ROW = b'{"event":'
"""The beginning of each line."""
RECORDING = b'"recorded":{'
"""Of the header of a recording, which several processes may write."""
MOST_TRACE_BYTES = 512 * 2**20
"""Largest file that is read."""
MOST_LINE = 16 * 2**20
"""Most bytes of a line of a file that grows."""


def to_json(event: Event) -> str:
    """Return the event as one JSONL line without the line end; not-a-number becomes null."""
    row: dict[str, Any] = {"event": event.tag}
    if isinstance(event, Header):
        return _ENCODER.encode(row | asdict(event))
    for name in types_of(type(event)):
        value = getattr(event, name)
        row[name] = None if value != value else value
    return _ENCODER.encode(row)


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
        event = kind(**{k: _devices(v) if k == "devices" else frozen(v) for k, v in row.items()})
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


def _check_names(kind: type[Line | Device], name: str, row: dict[str, Any]) -> None:
    if unknown := sorted(row.keys() - types_of(kind).keys()):
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


def frozen(value: Any) -> Any:
    return tuple(frozen(v) for v in value) if isinstance(value, list) else value


def whole_part(line: bytes) -> bytes:
    """Return a line of a recording without a row that a killed process did not finish.

    Several processes append to one file. After a killed process the next row follows on the same
    line, or on the next. A row begins with `ROW` and ends in }. No text of a row contains `ROW`,
    because quotes in texts are escaped.
    """
    row = line.strip()
    if not row.endswith(b"}"):
        return b"" if row and ROW.startswith(row[: len(ROW)]) else line
    last = line.rfind(ROW)
    if last > 0:
        try:
            parse_json(line)
        except ValueError:
            return line[last:]
    return line


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


def check_types(events: Sequence[Event] | Sequence[Device]) -> None:
    """Check the fields of events of one kind: types, ranges of numbers, valid Unicode.

    ValueError if a field has another value; the message names both, and the range.
    """
    if not events:
        return
    kind = type(events[0])
    for name, hint in types_of(kind).items():
        values = [getattr(event, name) for event in events]
        if not all_fit(values, hint):
            wrong = next(value for value in values if not fits(value, hint))
            raise ValueError(f"{name} of a {kind.__name__.lower()} is {shown(wrong)}{expected(hint)}")


def expected(hint: Any) -> str:
    """Return a closed set or a range, also of a list's values, as the end of a message."""
    if get_origin(hint) is Literal:
        return f"; it must be one of {', '.join(name or _EMPTY for name in get_args(hint))}"
    if get_origin(hint) is dict:
        return f"; expected an object of at most {MOST_SETTINGS} plain values in {MOST_LEVELS} levels"
    for part in get_args(hint):
        if isinstance(part, Range):
            return f"; expected {part.low} to {part.high}"
        if found := expected(part):
            return found
    return ""
