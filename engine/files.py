"""Safe file access: reads with a size limit, and writes that are complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

from specscope.engine.errors import UsageError


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    UsageError if it is missing, unreadable, too large, or a device, pipe or directory.
    """
    try:
        # O_NONBLOCK: otherwise opening a pipe without a writer waits forever
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(f"{path} is not a regular file; give a file")
            if status.st_size > limit:
                raise UsageError(f"{path} has {status.st_size} bytes; the limit is {limit}")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(limit + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None
    if len(content) > limit:  # a file in /proc reports 0 bytes
        raise UsageError(f"{path} has more than {limit} bytes, which is the limit")
    return content


def open_growing(path: Path, *, links: bool = True) -> int:
    """Return the descriptor of a regular file that may grow; -1 if it does not exist.

    UsageError if it cannot be read or is something else, without `links` also for a link.
    """
    # O_NONBLOCK: otherwise opening a pipe without a writer waits forever
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise UsageError(f"cannot read {path.name}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path.name} is not a regular file; give a file")
    return descriptor


def read_growing(path: Path, descriptor: int, most: int) -> bytes:
    """Return the next bytes of such a file; UsageError if it cannot be read."""
    try:
        return os.read(descriptor, most)
    except OSError as error:
        raise UsageError(f"cannot read {path.name}: {error.strerror}") from None


def read_text(path: Path, limit: int) -> str:
    """Return the content of a regular UTF-8 file; UsageError as `read_bytes`, or if not UTF-8."""
    try:
        return read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text: byte {error.start} is not UTF-8") from None


MOST_VALUES = 6_000_000
"""Most values of a JSON text. A small packed file can have so many that reading them stops every
thread for half a minute and takes gigabytes."""


def check_values(text: str | bytes, most: int = MOST_VALUES) -> None:
    """Raise ValueError if a JSON text has more brackets and commas, so values, than `most`."""
    signs = ("[", "{", ",") if isinstance(text, str) else (b"[", b"{", b",")
    values = sum(map(text.count, signs))  # type: ignore[arg-type]
    if values > most:
        raise ValueError(f"it has about {values} values; at most {most} are read")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    ValueError if it is not JSON, has more than MOST_VALUES values, nests too deeply, or has a
    number too long for Python.
    """
    check_values(text)
    try:
        return json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except RecursionError:
        raise ValueError("the JSON nests too deeply") from None
    except ValueError:  # Python reads no whole number of more than 4,300 digits
        raise ValueError("a number in the JSON has more than 4,300 digits") from None


@contextlib.contextmanager
def replacing(path: Path) -> Generator[IO[str]]:
    """Yield a text file that replaces `path` if the block ends without an error.

    The text is written to a temporary file in the same folder, which is renamed at the end: a full
    disk leaves the old file, or none. A device or a pipe (`/dev/stdout`) is written directly.
    OSError if the folder is missing or cannot be written, or the disk is full.
    """
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    path = path.resolve()  # keep a link, and replace its destination
    part = path.with_name(f".{path.name[:64]}.{uuid.uuid4().hex[:8]}.part")
    try:
        with part.open("x", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    except OSError as error:  # name the requested file, not the temporary one
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the folder of downloaded and converted models.

    SPECSCOPE_CACHE if set, else `specscope` in the user's cache folder. UsageError if it is in the
    home of an unknown user.
    """
    chosen = os.environ.get("SPECSCOPE_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specscope"
    except RuntimeError as error:
        raise UsageError(f"SPECSCOPE_CACHE is {chosen!r}: {error}") from None
