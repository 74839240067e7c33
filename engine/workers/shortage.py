"""Errors of allocators as one line: what was asked for, what is free, and what would fit."""

from __future__ import annotations

import gc
import re
import sys
import traceback

import psutil
import torch

from engine.errors import OutOfMemory
from engine.pairs.progress import megabytes
from engine.workers.forwards import Forwards
from engine.workers.free import cpu_free, device_free
from engine.workers.jobs import Begin, Job, Load, Room
from engine.workers.room import taken

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED", "bad_alloc")
"""Parts of the messages of torch's errors that are no `torch.OutOfMemoryError`."""
_ASKED = re.compile(r"allocate ([\d.]+) ?(bytes|[KMGTPE]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def out_of_memory(
    error: Exception, name: str, job: Job, forwards: Forwards, begin: Begin
) -> OutOfMemory | None:
    """Return the error of a worker that has no memory for a job, and free its KV caches.

    Args:
        error: The error that ended the job.
        name: The worker's name.
        job: The job.
        forwards: The worker's models and caches.
        begin: The present run.

    Returns:
        None for an error of another kind.
    """
    if not _is_shortage(error):
        return None
    asked, free = _asked(str(error)), _free()
    model = str(getattr(job, "model", "target"))
    names = tuple({*forwards.caches, model} & {*forwards.models})
    found = taken(forwards, Room(begin, names))
    whole = begin.slots * (begin.capacity + 1) * found.row
    lacking = (asked - free if asked > free else asked) if asked else whole // 2
    what = f"loading the {model}" if isinstance(job, Load) else f"a forward of the {model}"
    amount = f"{megabytes(asked)} more were asked for, " if asked else ""
    text = f"{name.split('/')[0]} has no memory for {what}: {amount}{megabytes(free)} are free"
    traceback.clear_frames(error.__traceback__)  # their intermediate results
    forwards.clear()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return OutOfMemory(text, budget=whole - lacking, row=found.row, exact=found.exact)


def _is_shortage(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(t in str(error) for t in _TEXTS)


def _asked(text: str) -> int:
    """Return the bytes that an error's message names; 0 if it names none."""
    found = _ASKED.search(text)
    return int(float(found[1]) * 1024 ** _UNITS.index(found[2])) if found else 0


def _free() -> int:
    """Return the free bytes of this process's device, on a CPU within its own limit, too."""
    if torch.cuda.is_initialized():
        return device_free()
    limits = [cpu_free()]
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            limits.append(max(0, limit - psutil.Process().memory_info().vms))
    return min(limits)
