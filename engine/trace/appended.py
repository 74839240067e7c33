"""A file that several threads and processes append whole lines to. Standard library only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specscope.engine.errors import UsageError
from specscope.engine.trace.events import Header
from specscope.engine.trace.jsonl import from_json

if sys.platform != "win32":
    import fcntl

MOST_HEADER_BYTES = 64 * 2**20


class Lines:
    """A file opened for appending. Each write is one call of the system: whole lines never mix.

    With `replace` the file is emptied, unless another one of `replace` is open: UsageError.
    """

    def __init__(self, path: Path, *, replace: bool) -> None:
        self.path = path
        try:
            self._file = path.open("ab", buffering=0)
            if replace:
                self._empty()
        except BlockingIOError:
            raise UsageError(
                f"another recording writes to {path}; close it, give another file, or join it with join=True"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"cannot record to {path}: {getattr(error, 'strerror', None) or error}"
            ) from None

    def _empty(self) -> None:
        if sys.platform != "win32":
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(self._file.fileno()).st_size:  # a device has none
            self._file.truncate(0)

    def write(self, lines: bytes) -> None:
        if self._file.closed:
            raise UsageError(f"the recording {self.path} is closed; end all work before close()")
        try:
            written = self._file.write(lines)
        except OSError as error:
            raise UsageError(f"cannot record to {self.path}: {error.strerror}") from None
        if written < len(lines):
            raise UsageError(f"cannot record to {self.path}: the disk is full")

    def close(self) -> None:
        if sys.platform != "win32" and not self._file.closed:
            fcntl.flock(self._file, fcntl.LOCK_UN)  # forked children keep the file open
        self._file.close()


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
        raise UsageError(f"cannot join {path}: it is no recording; give the file of specscope.record()")
    return event
