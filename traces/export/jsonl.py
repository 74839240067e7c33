"""A trace as a JSONL file: one event a line, as `engine.runtime.jsonl` writes it. What comes in is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from engine.errors import UsageError
from engine.runtime.events import Device, Event, Span
from engine.runtime.jsonl import read_jsonl, write_jsonl
from engine.runtime.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES = 512 * 2**20
"""Largest file that is read."""


def write_file(trace: Trace, path: str | Path) -> None:
    """Write the trace to a file, replacing it.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        with Path(path).open("w", encoding="utf-8", newline="\n") as file:
            write_jsonl(trace, file)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another file") from error


def read_file(path: str | Path, max_bytes: int = MAX_BYTES) -> Trace:
    """Read a trace; one without a footer gets one with the status `incomplete`.

    Raises:
        UsageError: The file cannot be read, is too large, or is not a trace: a value of the wrong type, an unknown
            device or sequence, a time before the run's start or a span that ends before it starts.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise UsageError(f"{path} has {size:,} bytes; a trace file may have at most {max_bytes:,}")
        with path.open(encoding="utf-8") as file:
            trace = read_jsonl(file)
        check(trace)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); check its name") from error
    except RecursionError:
        raise UsageError(f"{path} is not a SpecScope trace: its JSON is nested too deeply") from None
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{path} is not a SpecScope trace: {error}") from error
    return trace


def check(trace: Trace) -> None:
    """Raise ValueError unless every value has its type and every row fits the header."""
    for event in chain(trace.events(), trace.header.devices):
        for name, hint in _hints(type(event)):
            value = getattr(event, name)
            if not _fits(value, hint):
                raise ValueError(f"{name} of a {type(event).__name__.lower()} is {value!r:.60}")
    devices = [d.name for d in trace.header.devices]
    if len(set(devices)) < len(devices):
        raise ValueError(f"two devices have the same name: {', '.join(devices)}")
    for fault in _faults(trace, set(devices), len(trace.header.prompts)):
        raise ValueError(fault)


def _faults(trace: Trace, devices: set[str], sequences: int) -> Iterator[str]:
    """Yield what does not fit together."""
    ids = [span.id for span in trace.spans]
    if len(set(ids)) < len(ids):
        yield "two spans have the same id"
    if len(trace.header.prompt_ids) != sequences:
        yield f"there are token ids of {len(trace.header.prompt_ids)} prompts, but {sequences} prompts"
    if trace.footer and max(len(trace.footer.texts), len(trace.footer.reasons)) > sequences:
        yield f"the footer has more texts or reasons than the header's {sequences} prompts"
    for row in chain(trace.spans, trace.occupancy):
        if row.device not in devices:
            yield f"device {row.device!r} is not among the header's"
    for row in chain(trace.spans, trace.rounds, trace.decisions, trace.commits, trace.copies, trace.pooled):
        several = row.sequence == -1 and isinstance(row, Span)
        if not several and not 0 <= row.sequence < sequences:
            yield f"sequence {row.sequence} is not among the header's {sequences} prompts"
    known = set(ids)
    for part in trace.parts:
        if part.span not in known:
            yield f"span {part.span} of a part is not in the trace"
        if not 0 <= part.start <= part.end:
            yield f"a part of span {part.span} lasts from {part.start} to {part.end}"
    for row in trace.pooled:
        if row.model not in ("target", "drafter"):
            yield f"model of a pool is {row.model!r}"
        if row.size < 0:
            yield f"a pool holds {row.size} n-grams"
        if not all((*row.tried, *row.gained)):
            yield f"step {row.step} has an n-gram without tokens"
    documents = {d.document for d in trace.documents}
    for copy in trace.copies:
        if copy.document != -1 and copy.document not in documents:
            yield f"document {copy.document} of a copy is not in the trace"
        if min(copy.start - copy.match, copy.match, copy.length) < 0:
            yield f"a copy has start {copy.start}, match {copy.match} and length {copy.length}"
    for span in trace.spans:
        if not 0 <= span.start <= span.end:
            yield f"span {span.id} lasts from {span.start} to {span.end}"
    for row in chain(trace.rounds, trace.commits, trace.occupancy, [trace.footer] if trace.footer else []):
        if row.time < 0:
            yield f"time {row.time} is before the run's start"


@cache
def _hints(kind: type[Event | Device]) -> tuple[tuple[str, Any], ...]:
    hints = get_type_hints(kind)
    return tuple((f.name, hints[f.name]) for f in fields(kind))


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type as events use it; numbers must be finite and texts valid Unicode."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in args
    if origin in (Union, UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is tuple and args[-1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(v, args[0]) for v in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(args) and all(map(_fits, value, args))
    if origin is dict:
        return isinstance(value, dict) and _plain(value)
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if hint is str:
        return isinstance(value, str) and _encodes(value)
    return isinstance(value, hint)


def _plain(value: Any) -> bool:
    """Return whether a value is JSON that every reader takes: finite numbers, valid Unicode."""
    if isinstance(value, Mapping):
        return all(_plain(k) and _plain(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return _encodes(value) if isinstance(value, str) else value is None or isinstance(value, int)


def _encodes(text: str) -> bool:
    """Return whether a text is valid Unicode: JSON can spell halves of a character, which nothing else takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
