"""Free memory of this machine."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

CONTAINER = Path("/sys/fs/cgroup")
"""Folder with the limit of a container's memory, if it has one."""


def cpu_free() -> int:
    """Return the bytes that the kernel, and the limit of a container, leave to this process."""
    return min([psutil.virtual_memory().available, *_container()])


def device_free() -> int:
    """Return the free bytes of this process's GPU, or of the machine for a process without one."""
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_initialized() else cpu_free()


def _container() -> list[int]:
    """Return the free bytes of this process's container; nothing without a limit."""
    try:
        limit, used = ((CONTAINER / f"memory.{name}").read_text() for name in ("max", "current"))
        rows = (line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        cached = next(int(count) for name, count in rows if name == "inactive_file")
    except (OSError, ValueError, StopIteration):
        return []
    return [max(0, int(limit) - int(used) + cached)] if limit.strip().isdecimal() else []
