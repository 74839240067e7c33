"""Memory that worker processes share: zero bytes that a worker maps by their path.

On Linux the bytes are an anonymous file (`memfd_create`); a worker opens it through /proc. The size
of /dev/shm, 64 MB in a container, does not limit it, and no file stays when this process is killed.
On other systems the bytes are a temporary file, which `close` removes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from engine.errors import SpecScopeError


class Shared:
    """So many zero bytes; pages exist only once used.

    Raises:
        SpecScopeError: The system does not give that many bytes.
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
        """Close this process's handle. Workers that mapped the bytes keep them; no other can map them."""
        os.close(self._handle)
        if self._file:
            Path(self._file).unlink(missing_ok=True)


def _check_disk(size: int) -> None:
    """Refuse a file that its disk could not hold: writing to it would later kill the worker (SIGBUS)."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < size:
        raise SpecScopeError(
            f"the workers share {size:,} bytes in {folder}, which has {free:,} free; free some, or set TMPDIR "
            "to another folder"
        )
