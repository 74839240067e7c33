"""Slabs: rows of q in shared memory, (R, V) float32, one slab per drafting worker.

The run leases row numbers before it requests a draft. They are free again when the last Draft that
holds them is gone, so no message is needed.
"""

from __future__ import annotations

import numpy as np

from engine.errors import SpecScopeError
from engine.workers.shared import SharedMemory

ROWS = 4096
"""Enough for two rounds of 24 sequences with trees of 64 nodes; unused rows take no memory."""


class Lease:
    """Row numbers in use; deleting the lease frees them."""

    def __init__(self, slab: Slab, rows: tuple[int, ...]) -> None:
        self.rows = rows
        self._slab = slab

    def __del__(self) -> None:
        self._slab.free(self.rows)

    def __reduce__(self) -> tuple[type[tuple[()]], tuple[()]]:
        return tuple, ()  # only the row numbers go to a worker; the lease stays here


class Slab:
    """The run's side of one drafting worker's rows."""

    def __init__(self, name: str, vocab_size: int) -> None:
        self.name = name
        self.shape = (ROWS, vocab_size)
        self._free = list(range(ROWS))[::-1]
        self._memory = SharedMemory(ROWS * vocab_size * 4)
        self.path = self._memory.path

    def lease(self, n: int) -> Lease:
        """Lease n rows.

        Raises:
            SpecScopeError: More rows are in use than the slab has.
        """
        if n > len(self._free):
            raise SpecScopeError(
                f"more than {ROWS} rows of q are in use at once; use a smaller gamma or batch"
            )
        return Lease(self, tuple(self._free.pop() for _ in range(n)))

    def free(self, rows: tuple[int, ...]) -> None:
        """Free rows."""
        self._free.extend(rows[::-1])

    def close(self) -> None:
        """Close this side's handle: mappings stay, but no further worker can map the rows."""
        self._memory.close()


def attach(path: str, shape: tuple[int, int]) -> np.ndarray:
    """Map another process's slab, (R, V) float32."""
    return np.memmap(path, dtype=np.float32, mode="r+", shape=shape)
