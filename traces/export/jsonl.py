"""A trace as a JSONL file: one event a line, as `engine.trace.jsonl` writes it. A trace that is read is checked."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.files import read_bytes, replacing
from engine.trace.jsonl import read_jsonl, write_jsonl
from traces.checks import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.trace.trace import Trace

MAX_BYTES = 512 * 2**20
"""Largest file that is read."""


def write_file(trace: Trace, path: str | Path) -> None:
    """Write the trace to a file, replacing it; a full disk leaves the old file.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        with replacing(Path(path)) as file:
            write_jsonl(trace, file)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another file") from error


def read_file(path: str | Path, max_bytes: int = MAX_BYTES) -> Trace:
    """Read a trace; one without a footer gets one with the status `incomplete`.

    Raises:
        UsageError: The file cannot be read, is no regular file, is too large, or is not a trace: a value of the wrong
            type, an unknown device or sequence, a time before the run's start or a span that ends before it starts.
    """
    content = read_bytes(Path(path), max_bytes)
    try:
        trace = read_jsonl(_lines(content))
        check(trace)
    except ValueError as error:
        raise UsageError(f"{path} is not a SpecScope trace: {error}") from error
    return trace


def _lines(content: bytes) -> Iterator[str]:
    r"""Yield the lines of a file. Only \n ends a line: JSON texts may hold other line ends of Unicode."""
    for number, line in enumerate(io.BytesIO(content), 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number}: byte {error.start} is not UTF-8") from None
