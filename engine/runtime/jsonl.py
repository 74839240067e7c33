"""A trace as JSONL: one event a line. Standard library only.

A file without a footer is of a run that ended badly; it is shown as `incomplete`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import IO, Any, get_args

from engine.runtime.events import SCHEMA, Device, Event, Footer, Header, Row
from engine.runtime.trace import Trace

_TYPES: dict[str, type[Any]] = {t.tag: t for t in (Header, *get_args(Row), Footer)}


def to_json(event: Event) -> str:
    """Return one JSONL line, without the line end. Not-a-number becomes null."""
    row = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(event).items()}
    return json.dumps({"event": event.tag, **row}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> Event:
    """Return the event of one JSONL line.

    Raises:
        ValueError: The line is not JSON, of unknown kind, of a newer schema, or its fields are not the expected ones.
    """
    row = json.loads(line)
    kind = _TYPES.get(row.pop("event", "")) if isinstance(row, dict) else None
    if kind is None:
        raise ValueError(f"not a trace event: {line[:60]!r}")
    if row.get("schema", SCHEMA) > SCHEMA:
        raise ValueError(
            f"the trace has schema {row['schema']}, this SpecScope reads up to {SCHEMA}; please update"
        )
    expected = {f.name for f in fields(kind)}
    if unknown := set(row) - expected:
        raise ValueError(f"a {kind.tag} has no field {', '.join(sorted(unknown))}")
    if "devices" in row:
        row["devices"] = [Device(**d) for d in row["devices"]]
    try:
        return kind(**{k: _frozen(v) for k, v in row.items()})
    except TypeError as e:
        raise ValueError(f"a {kind.tag} is incomplete: {e}") from None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def write_jsonl(trace: Trace, file: IO[str]) -> None:
    """Write the trace, one event a line."""
    for event in trace.events():
        file.write(to_json(event) + "\n")


def read_jsonl(lines: Iterable[str]) -> Trace:
    """Read one trace; a missing footer makes it incomplete.

    Raises:
        ValueError: A line is not an event of this format; the message names the line.
    """

    def parse() -> Iterator[Event]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield from_json(line)
                except (ValueError, TypeError) as e:
                    raise ValueError(f"line {number}: {e}") from None

    trace = Trace.of(parse())
    if trace.footer is None:
        last = max((s.end for s in trace.spans), default=0)
        texts = tuple(
            "".join(c.text for c in trace.commits if c.sequence == i)
            for i in range(len(trace.header.prompts))
        )
        trace.footer = Footer("incomplete", ("",) * len(texts), texts, last, "the run ended without a footer")
    return trace
