"""A file that several threads and processes append whole lines to. Standard library only."""

from __future__ import annotations

import os
import stat
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from threading import RLock

from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.events import Header
from specscope.engine.trace.jsonl import MOST_LINE, MOST_TRACE_BYTES, from_json

if sys.platform != "win32":
    import fcntl

MOST_HEADER_BYTES = MOST_LINE
MOST_KEPT = 64 * 2**20
"""Bytes that wait in memory for a disk that is full; with more, the recording ends."""
MOST_NAME = 500
"""Characters of a path that a message shows whole."""
CHECKED = 2**20
"""Bytes that are written between two looks at the file's size."""
_SPARE = 16 * CHECKED
"""Bytes that processes may write meanwhile, before a reader's limit is reached."""
EACH = 2**24
"""Ids of a process; with the most bytes of a file they are below 2**53, as JavaScript needs."""


class Process:
    """This process; `os.getpid` would be a call of the system for each span."""

    token = object()
    """Another one in a forked child."""

    @classmethod
    def renew(cls) -> None:
        cls.token = object()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=Process.renew)


class Lines:
    """A file opened for appending. Each write is one call of the system: whole lines never mix.

    While it is open, no other program can empty the file. Lines that a full disk did not take are
    kept, and written with the next ones.

    Args:
        path: A regular file.
        replace: Begin a recording: the file is emptied. Otherwise join one that is running.

    Raises:
        UsageError: The file cannot be written; another program records to it, or with
            `replace=False` none does.
    """

    def __init__(self, path: Path, *, replace: bool) -> None:
        self.path = path.absolute()
        name = str(path)
        self._name = name if name.isprintable() and len(name) < MOST_NAME else shown(name)
        self._process, self._lock = Process.token, RLock()
        self._kept = b""
        self._room = 0
        """Bytes until the next look at the file's size."""
        self._fault = f"the recording {self._name} is closed; end all work before close()"
        """Why nothing can be written once the file is closed."""
        self._file = -1
        try:
            self._file = os.open(path, _FLAGS | (os.O_CREAT if replace else 0), 0o666)
            self._close = weakref.finalize(self, os.close, self._file)
            self._begin(replace)
        except (OSError, ValueError) as error:
            self._closed()
            if isinstance(error, UsageError):
                raise
            if replace:
                raise UsageError(f"cannot record to {self._name}: {_reason(error)}") from None
            raise UsageError(
                f"cannot join the recording {self._name}: {_reason(error)}; call start() in the process that opened it first"
            ) from None

    def _begin(self, replace: bool) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise UsageError(f"cannot record to {self._name}: it is not a regular file; give a file")
        alone = replace if sys.platform == "win32" else _alone(self._file)
        if replace and not alone:
            raise UsageError(
                f"another recording writes to {self._name}; close it, give another file, or join it with join=True"
            )
        if not replace and alone:
            raise UsageError(f"cannot join {self._name}: no program records to it now; join before close()")
        if replace:
            os.ftruncate(self._file, 0)
        if sys.platform != "win32":
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # with those that join

    def write(self, lines: bytes) -> None:
        with self._lock:
            if self._file < 0:
                raise UsageError(self._fault)
            self._check_size(lines)
            lines = self._kept + lines
            why = self._append(lines)
            self._kept = lines if why else b""
            if not why:
                return
            failed = f"cannot record to {self._name}: {why}; its last {_count(lines)} rows"
            if len(lines) > MOST_KEPT:
                self._fault = f"{failed} are lost, and it ends before them"
                self._closed()
                raise UsageError(self._fault)
            raise UsageError(f"{failed} wait in memory for the next call")

    def place(self) -> int:
        """Write an empty line; return a place in the file that no process gets twice."""
        with self._lock:
            self.write(b"\n")
            return os.lseek(self._file, 0, os.SEEK_CUR)

    def header(self) -> Header:
        """Return the header of the recording; UsageError if it is none, or not written yet."""
        first = os.pread(self._file, MOST_HEADER_BYTES, 0).partition(b"\n")[0]
        try:
            event = from_json(first.decode())
        except ValueError as error:
            raise UsageError(
                f"cannot join {self._name}: {error}; call start() in the process that opened it first"
            ) from None
        entry = event.environment.get("recorded") if isinstance(event, Header) else None
        if not isinstance(event, Header) or not isinstance(entry, dict) or "start_ns" not in entry:
            raise UsageError(
                f"cannot join {self._name}: it is no recording; give the file of specscope.record()"
            )
        return event

    def joined(self, run_id: str) -> Lines:
        """Return the recording `run_id` for a forked child, whose parent may close its own."""
        self._closed()
        lines = Lines(self.path, replace=False)
        if lines.header().run_id != run_id:
            lines.close()
            raise UsageError(self._fault)
        return lines

    def close(self) -> None:
        """Close the file; UsageError if lines that were kept are lost."""
        with self._lock:
            mine = self._file >= 0 and self._process is Process.token
            kept, self._kept = self._kept if mine else b"", b""
            why = self._append(kept) if kept else ""
            if sys.platform != "win32" and mine:
                fcntl.flock(self._file, fcntl.LOCK_UN)  # forked children keep the file open
            self._closed()
            if why:
                raise UsageError(
                    f"cannot record to {self._name}: {why}; its last {_count(kept)} rows are lost"
                )

    def _closed(self) -> None:
        if self._file >= 0:
            self._close()
            self._file = -1

    def _append(self, lines: bytes) -> str:
        """Append lines whole, or nothing; return why they cannot be written, if they cannot."""
        for _ in range(2):  # a disk that is almost full takes a part, and only then says why
            try:
                written = os.write(self._file, lines)
            except OSError as error:
                return _reason(error)
            if written == len(lines):
                return ""
            self._blank(written)
        return "the disk is full"

    def _blank(self, count: int) -> None:
        """Make spaces of the last bytes, a part of a line: others may write behind them."""
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        if sys.platform == "win32":
            os.ftruncate(self._file, end - count)
            return
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_APPEND)  # with it, pwrite appends
        try:
            os.pwrite(self._file, b" " * count, end - count)
        except OSError:  # a file system that copies on write needs space for this, too
            os.ftruncate(self._file, end - count)
        finally:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags)

    def _check_size(self, lines: bytes) -> None:
        """Raise UsageError for a row, or a file, that is larger than what is read."""
        if len(lines) > MOST_LINE and (longest := max(map(len, lines.split(b"\n")))) > MOST_LINE:
            raise UsageError(
                f"a row has {longest} bytes; at most {MOST_LINE} are read: give shorter texts, or fewer values"
            )
        self._room -= len(lines)
        if self._room < 0:
            left = MOST_TRACE_BYTES - _SPARE - os.fstat(self._file).st_size - len(self._kept) - len(lines)
            if left < 0:
                raise UsageError(
                    f"{self._name} has {MOST_TRACE_BYTES - _SPARE} bytes, the most of a recording; end it, and "
                    "record each request in a file of its own"
                )
            self._room = min(CHECKED, left)


_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""O_NONBLOCK: otherwise opening a pipe without a reader waits forever."""


def _alone(file: int) -> bool:
    """Take a file that no recording has open; False if one has."""
    assert sys.platform != "win32"
    for pause in (0, 0.05):  # one that only looks has it for a moment
        time.sleep(pause)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        return True
    return False


def _count(lines: bytes) -> int:
    return sum(map(bool, lines.split(b"\n")))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class KeptLines:
    """Lines that are kept in memory, in place of a file."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, lines: bytes) -> None:
        self.content += lines

    def place(self) -> int:
        self.write(b"\n")
        return len(self.content)

    def joined(self, _: str) -> KeptLines:
        return self

    def close(self) -> None:
        """Do nothing."""


class Numbers:
    """Ids of spans, which no two processes of a recording share: from 0 in the one that opened it.

    Args:
        place: A place in the recording's file that no process gets twice.
        joined: Whether another process opened the recording.
    """

    def __init__(self, place: Callable[[], int], *, joined: bool) -> None:
        self._place = place
        self._ids = iter(range(0 if joined else EACH))

    def next(self) -> int:
        number = next(self._ids, -1)
        return self._more() if number < 0 else number

    def _more(self) -> int:
        first = self._place() * EACH
        self._ids = iter(range(first + 1, first + EACH))
        return first
