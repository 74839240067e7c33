"""The content of a file to import: unpacked, as UTF-8."""

from __future__ import annotations

import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import suppress
from pathlib import Path

from specscope.engine.errors import UsageError
from specscope.engine.files import read_bytes

MAX_BYTES = 128 * 2**20
"""Size of the largest file of another engine: parsed, it needs several times as much memory."""
_AFTER_HEADERS = re.compile(rb"\r?\n\r?\n")


def content_of(path: str | Path, max_bytes: int) -> bytes:
    """Return the content of a file, unpacked and as UTF-8, without the headers of `curl -i`."""
    file = Path(path)
    with suppress(OSError):  # a name that is too long; `read_bytes` says why
        if file.is_dir():
            what = "a model's folder" if (file / "config.json").exists() else "a folder"
            raise UsageError(f"cannot read {file}: it is {what}; give a file")
    content = read_bytes(file, max_bytes)
    try:
        content = _unpacked(content, min(max_bytes, MAX_BYTES))
        if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            content = content.decode("utf-16", "replace").encode()
    except ValueError as error:
        raise UsageError(f"cannot import {path}: {error}") from None
    content = content.removeprefix(BOM_UTF8)
    return _AFTER_HEADERS.split(content, 1)[-1] if content.startswith(b"HTTP/") else content


def _unpacked(content: bytes, most: int) -> bytes:
    """Return the content of a file, unpacked if it is gzip, as profilers write traces."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    packed = zlib.decompressobj(wbits=31)
    try:
        unpacked = packed.decompress(content, most + 1)
    except zlib.error as error:
        raise ValueError(f"it is no gzip file: {error}") from None
    if len(unpacked) > most:
        raise ValueError(f"unpacked it has more than {most} bytes, the most that are read")
    if not packed.eof:
        raise ValueError("the gzip file is cut")
    return unpacked
