"""The counts of a GGUF file: none may claim more than the bytes that follow it.

The package `gguf` believes them: an array of 2^30 values in a 5 KB file takes memory without end.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

from engine.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Versions with this header; `gguf` refuses others."""
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Type of a value -> its bytes."""
_STRING, _ARRAY = 8, 9
_MOST_DIMENSIONS = 8


def check_counts(path: Path) -> None:
    """Check the counts of keys, values, tensors and dimensions of a little-endian file.

    A file of another format passes: its reader refuses it.

    Raises:
        ModelError: A count does not fit, or a value is of an unknown type.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < len(MAGIC) or file.read(len(MAGIC)) != MAGIC:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Counts(path, data).check()


class _Counts:
    """Reads a file's header from its start."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, len(MAGIC)

    def check(self) -> None:
        version = self._number("<I")
        if not version & 0xFFFF:  # the other byte order
            raise ModelError(f"{self._path} is a big-endian GGUF file; only little-endian ones are read")
        if version not in VERSIONS:
            return
        tensors, keys = self._number("<Q"), self._number("<Q")
        self._fits(tensors, 24)
        self._fits(keys, 13)
        for _ in range(keys):
            self._string()
            self._value(self._number("<I"))
        for _ in range(tensors):
            self._string()
            dimensions = self._number("<I")
            if dimensions > _MOST_DIMENSIONS:
                raise self._error(f"a tensor of {dimensions:,} dimensions")
            self._skip(8 * dimensions + 12)

    def _value(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            self._array()
        elif kind in _SIZES:
            self._skip(_SIZES[kind])
        else:
            raise self._error(f"a value of the unknown type {kind}")

    def _array(self) -> None:
        kind, count = self._number("<I"), self._number("<Q")
        if kind == _STRING:
            self._fits(count, 8)
            for _ in range(count):
                self._string()
        elif kind in _SIZES:
            self._skip(self._fits(count, _SIZES[kind]))
        else:
            raise self._error(f"an array of the type {kind}")

    def _string(self) -> None:
        self._skip(self._number("<Q"))

    def _number(self, form: str) -> int:
        size = struct.calcsize(form)
        self._fits(1, size)
        (number,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return number

    def _skip(self, count: int) -> None:
        self._at += self._fits(count, 1)

    def _fits(self, count: int, size: int) -> int:
        """Return the bytes of `count` things of at least `size` bytes."""
        left = len(self._data) - self._at
        if count * size > left:
            raise self._error(f"{count:,} values or characters where {left:,} bytes are left")
        return count * size

    def _error(self, what: str) -> ModelError:
        return ModelError(f"{self._path} is not a complete GGUF file: it claims {what}")
