"""A file that several threads and processes append whole lines to. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from engine.errors import UsageError
from engine.trace.events import Header
from engine.trace.jsonl import from_json

MOST_HEADER_BYTES = 64 * 2**20


class Lines:
    """A file opened for appending. Each write is one call of the system: whole lines never mix."""

    def __init__(self, path: Path, *, replace: bool) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if replace else 0)
        self.path = path
        try:
            self._file = os.open(path, flags, 0o666)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"cannot record to {path}: {getattr(error, 'strerror', None) or error}"
            ) from None

    def write(self, lines: bytes) -> None:
        if self._file < 0:
            raise UsageError(f"the recording {self.path} is closed; end all work before close()")
        try:
            written = os.write(self._file, lines)
        except OSError as error:
            raise UsageError(f"cannot record to {self.path}: {error.strerror}") from None
        if written < len(lines):
            raise UsageError(f"cannot record to {self.path}: the disk is full")

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Memory:
    """Lines that are kept in memory, in place of a file."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, lines: bytes) -> None:
        self.content += lines

    def close(self) -> None:
        """Do nothing."""


def header_of(path: Path) -> Header:
    """Return the header of a recording that another process has begun; UsageError without one."""
    try:
        with path.open(encoding="utf-8") as file:
            event = from_json(file.readline(MOST_HEADER_BYTES))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot join the recording {path}: {error}; call start() in the process that opened it first"
        ) from None
    entry = event.environment.get("recorded") if isinstance(event, Header) else None
    if not isinstance(event, Header) or not isinstance(entry, dict) or "start_ns" not in entry:
        raise UsageError(f"cannot join {path}: it is no recording; give the file of engine.record()")
    return event
