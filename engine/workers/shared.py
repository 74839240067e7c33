"""Memory shared by worker processes: a worker maps it by its path.

On Linux it is an anonymous file (`memfd_create`) that a worker opens through /proc. The size of
/dev/shm, 64 MB in a container, does not limit it, and no file remains when this process is killed.
On other systems it is a temporary file, which `close` removes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from engine.errors import SpecScopeError


class SharedMemory:
    """Zero bytes to share; the system allocates a page at its first use.

    Args:
        size: Bytes.

    Raises:
        SpecScopeError: The system refuses this many bytes.
    """

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
