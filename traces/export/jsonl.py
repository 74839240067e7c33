"""Read a trace from a JSONL file, and check it; `engine.trace.jsonl` writes one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.files import read_bytes
from engine.trace.jsonl import read_jsonl
from traces.checks import check

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.trace.trace import Trace

MAX_BYTES = 512 * 2**20
"""Size of the largest file that is read."""


def read_file(path: str | Path, max_bytes: int = MAX_BYTES) -> Trace:
    """Read a trace; one without a footer gets one with status `incomplete`.

    Raises:
        UsageError: The file cannot be read, is no regular file, is too large, or is not a valid
            trace.
    """
    return parse(read_bytes(Path(path), max_bytes), path)


def parse(content: bytes, path: str | Path) -> Trace:
    """Read a trace from the content of a file; the path is named in errors.

    Raises:
        UsageError: The content is not a valid trace.
    """
    try:
        trace = read_jsonl(_lines(content))
        check(trace)
    except ValueError as error:
        raise UsageError(f"{path} is not a SpecScope trace: {error}") from error
    return trace


def _lines(content: bytes) -> Iterator[str]:
    r"""Yield the lines of a file. Only \n ends a line: JSON may contain other line ends."""
    for number, line in enumerate(io.BytesIO(content), 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"line {number}: byte {error.start} is not UTF-8") from None
