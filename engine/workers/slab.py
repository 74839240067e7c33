"""Rows of q that cross workers: one slab of (R, V) float32 per drafting worker, handed out by the run's side.

The run leases row numbers before it asks for a draft and frees them when the last Draft that holds them is gone, so
no message is needed. The slab is shared memory; pages exist only once used.
"""

from __future__ import annotations

import numpy as np

from engine.errors import SpecScopeError
from engine.workers.shared import Shared

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
        self._memory = Shared(ROWS * vocab_size * 4)
        self.path = self._memory.path

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

    def close(self) -> None:
        """Close this side's handle. Workers that mapped the rows keep them; no other can map them."""
        self._memory.close()


def attach(path: str, shape: tuple[int, int]) -> np.ndarray:
    """Map another process's slab, (R, V) float32."""
    return np.memmap(path, dtype=np.float32, mode="r+", shape=shape)
