"""Rows of q that cross workers: one slab of (R, V) float32 per drafting worker, handed out by the run's side.

The run leases row numbers before it asks for a draft and frees them when the last Draft that holds them is gone, so
no message is needed. The slab is a mapped file in memory; pages exist only once used.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from engine.errors import SpecScopeError

ROWS = 4096
"""Two rounds of 24 sequences with trees of 64 nodes fit in; rows that nobody uses take no memory."""


class Lease:
    """Row numbers in use; they return to the slab when the lease is no longer referred to."""

    def __init__(self, slab: Slab, rows: tuple[int, ...]) -> None:
        self.rows = rows
        self._slab = slab

    def __del__(self) -> None:
        self._slab.free(self.rows)

    def __reduce__(self) -> tuple[type[tuple[()]], tuple[()]]:
        return tuple, ()  # a worker needs the row numbers only; the lease stays here


class Slab:
    """The run's side: owns the rows of one drafting worker."""

    def __init__(self, name: str, vocab_size: int) -> None:
        self.name = name
        self.shape = (ROWS, vocab_size)
        self._free = list(range(ROWS))[::-1]
        self.path = new_file(".q", ROWS * vocab_size * 4)

    def lease(self, n: int) -> Lease:
        """Take n rows.

        Raises:
            SpecScopeError: More rows are in use than the slab has.
        """
        if n > len(self._free):
            raise SpecScopeError(f"more than {ROWS} rows of q are in use at once; use a smaller gamma")
        return Lease(self, tuple(self._free.pop() for _ in range(n)))

    def free(self, rows: tuple[int, ...]) -> None:
        """Give rows back."""
        self._free.extend(rows[::-1])

    def unlink(self) -> None:
        """Remove the file's name: it lives on while somebody maps it, and nothing is left behind after a crash."""
        Path(self.path).unlink(missing_ok=True)


def new_file(suffix: str, size: int) -> str:
    """Make a file of so many zero bytes, in memory where that is possible, for processes to map; return its path."""
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    handle, path = tempfile.mkstemp(prefix="specscope-", suffix=suffix, dir=folder)
    os.truncate(handle, size)
    os.close(handle)
    return path


def attach(path: str, shape: tuple[int, int]) -> np.ndarray:
    """Map another process's slab, (R, V) float32."""
    return np.memmap(path, dtype=np.float32, mode="r+", shape=shape)
