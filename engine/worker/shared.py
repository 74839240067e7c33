"""Memory shared by worker processes, and the q buffers in it: a worker maps it by its path.

On Linux it is an anonymous file (`memfd_create`) that a worker opens through /proc. The size of
/dev/shm, 64 MB in a container, does not limit it, and no file remains when this process is killed.
On other systems it is a temporary file, which `close` removes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from specscope.engine.errors import SpecScopeError

ROWS = 4096
"""Enough for two rounds of 24 sequences with trees of 64 nodes; unused rows take no memory."""


class SharedMemory:
    """Zero bytes to share; the system allocates a page at its first use, or SpecScopeError."""

    def __init__(self, size: int) -> None:
        self._file, self._handle = "", -1
        try:
            if hasattr(os, "memfd_create"):
                self._handle = os.memfd_create("specscope")
                self.path = f"/proc/{os.getpid()}/fd/{self._handle}"
            else:
                _check_disk(size)
                self._handle, self.path = tempfile.mkstemp(prefix="specscope-")
                self._file = self.path
            os.truncate(self._handle, size)
        except OSError as error:
            if self._handle >= 0:
                self.close()
            raise SpecScopeError(
                f"cannot share {size:,} bytes of memory with the workers ({error.strerror}); free memory, "
                "or raise this process's limits on file sizes and open files (ulimit -f, ulimit -n)"
            ) from None

    def close(self) -> None:
        """Close this process's handle: mappings stay, but no further worker can map the memory."""
        os.close(self._handle)
        if self._file:
            Path(self._file).unlink(missing_ok=True)


def _check_disk(size: int) -> None:
    """Raise SpecScopeError if the disk is too full; a later write would raise SIGBUS."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < size:
        raise SpecScopeError(
            f"the workers share {size:,} bytes in {folder}, which has {free:,} free; free some, or set TMPDIR "
            "to another folder"
        )


class Lease:
    """Row numbers in use; deleting the lease frees them."""

    def __init__(self, q_buffer: QBuffer, rows: tuple[int, ...]) -> None:
        self.rows = rows
        self._q_buffer = q_buffer

    def __del__(self) -> None:
        self._q_buffer.free(self.rows)

    def __reduce__(self) -> tuple[type[tuple[()]], tuple[()]]:
        return tuple, ()  # only the row numbers go to a worker; the lease stays here


class QBuffer:
    """Rows of q in shared memory, (R, V) float32, one buffer per drafting worker; the run's side.

    The run leases row numbers before it requests a draft. They are free again when the last Draft
    that holds them is gone, so no message is needed.
    """

    def __init__(self, name: str, vocab_size: int) -> None:
        self.name = name
        self.shape = (ROWS, vocab_size)
        self._free = list(range(ROWS))[::-1]
        self._memory = SharedMemory(ROWS * vocab_size * 4)
        self.path = self._memory.path

    def lease(self, n: int) -> Lease:
        """Lease n rows; SpecScopeError if the buffer has fewer free ones."""
        if n > len(self._free):
            raise SpecScopeError(
                f"more than {ROWS} rows of q are in use at once; use a smaller gamma or batch"
            )
        return Lease(self, tuple(self._free.pop() for _ in range(n)))

    def free(self, rows: tuple[int, ...]) -> None:
        self._free.extend(rows[::-1])

    def close(self) -> None:
        """Close this side's handle: mappings stay, but no further worker can map the rows."""
        self._memory.close()


def attach(path: str, shape: tuple[int, int]) -> np.ndarray:
    return np.memmap(path, dtype=np.float32, mode="r+", shape=shape)
