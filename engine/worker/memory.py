"""The memory of a worker: what is free, what its KV caches take, and the error when it runs out."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil
import torch

from specscope.engine.checkpoints.progress import megabytes
from specscope.engine.errors import OutOfMemory
from specscope.engine.model.cache import Cache
from specscope.engine.model.decoder import Decoder
from specscope.engine.worker.forwards import Forwards, next_size
from specscope.engine.worker.jobs import AskCaches, CacheMemory, Job, LoadModel

CONTAINER = Path("/sys/fs/cgroup")
"""Folder with the limit of a container's memory, if it has one."""


def cpu_free() -> int:
    """Return the bytes that the kernel, and the limit of a container, leave to this process."""
    return min([psutil.virtual_memory().available, *_container()])


def _container() -> list[int]:
    """Return the free bytes of this process's container; nothing without a limit."""
    try:
        limit, used = ((CONTAINER / f"memory.{name}").read_text() for name in ("max", "current"))
        rows = (line.split() for line in (CONTAINER / "memory.stat").read_text().splitlines())
        cached = next(int(count) for name, count in rows if name == "inactive_file")
    except (OSError, ValueError, StopIteration):
        return []
    return [max(0, int(limit) - int(used) + cached)] if limit.strip().isdecimal() else []


def taken(forwards: Forwards, job: AskCaches) -> CacheMemory:
    begin, caches = job.begin, forwards.caches
    held = {name: _held(cache) for name, cache in caches.items() if isinstance(cache, Cache)}
    kept = forwards.kept_states(begin.features)
    heads, rows = forwards.heads, dict[str, int]()
    for model in job.models:
        names = heads[model].named(model) if model in heads else (model,)
        rows |= {name: _row(forwards, name, kept) for name in names}
    size = next_size(forwards.size, begin.slots, begin.capacity)
    dropped = 0 if size == forwards.size else sum(held.values())
    present: Mapping[str, int] = {} if dropped else held
    numbers = size[0] * (size[1] + 1)
    more = sum(max(0, numbers * row - present.get(name, 0)) for name, row in rows.items())
    models = [forwards.models[name] for name in rows if name in forwards.models]
    exact = any(getattr(model, "dtype", torch.int8).itemsize > 2 for model in models)
    row = sum(rows.values())
    return CacheMemory(sum(held.values()), more - dropped, row, _spare(), exact, _compiled(forwards, rows))


def _compiled(forwards: Forwards, names: Iterable[str]) -> tuple[tuple[str, int], ...]:
    models = [(name, forwards.models.get(name)) for name in names]
    return tuple(
        (name, count)
        for name, model in models
        if isinstance(model, Decoder) and model.compiled is not None
        for count in model.compiled.rows
    )


def _row(forwards: Forwards, name: str, kept: Mapping[str, tuple[int, ...]]) -> int:
    cache = forwards.models[name].new_cache(1, 0) if name in forwards.models else None
    if not isinstance(cache, Cache):
        return 0
    states = len(kept.get(name, ())) * cache.shape.width * cache.tensor.element_size()
    return cache.tensor.nbytes + states  # the tensor has one row more than the capacity


def _held(cache: Cache) -> int:
    """Return the bytes of a cache. On a CPU rows take memory when they are first written."""
    states = 0 if cache.features is None else cache.features.nbytes
    if cache.tensor.device.type != "cpu":
        return cache.tensor.nbytes + states
    rows = sum(map(cache.most_rows, range(cache.slots)))
    return rows * cache.tensor.nbytes // (cache.slots * cache.tensor.shape[3]) + states


def _spare() -> int:
    if not torch.cuda.is_initialized():
        return 0
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED", "bad_alloc")
"""Parts of the messages of torch's errors that are no `torch.OutOfMemoryError`."""
_ASKED = re.compile(r"allocate ([\d.]+) ?(bytes|[KMGTPE]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def out_of_memory(error: Exception, name: str, job: Job, forwards: Forwards) -> OutOfMemory | None:
    """Return the error of a worker that has no memory for a job, and free its KV caches.

    None if the error that ended the job is of another kind.
    """
    if not _is_shortage(error):
        return None
    asked, free = _asked(str(error)), _free()
    model = str(getattr(job, "model", "target"))
    names = tuple({*forwards.caches, model} & {*forwards.models})
    run, found = forwards.run, taken(forwards, AskCaches(forwards.run, names))
    whole = run.slots * (run.capacity + 1) * found.row
    lacking = (asked - free if asked > free else asked) if asked else whole // 2
    what = f"loading the {model}" if isinstance(job, LoadModel) else f"a forward of the {model}"
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
    found = _ASKED.search(text)
    return int(float(found[1]) * 1024 ** _UNITS.index(found[2])) if found else 0


def _free() -> int:
    """Return the free bytes of this process's device, on a CPU within its own limit, too."""
    if torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        share = round(total * torch.cuda.get_per_process_memory_fraction())
        return min(free, max(0, share - torch.cuda.memory_reserved()))
    limits = [cpu_free()]
    if sys.platform != "win32":
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            limits.append(max(0, limit - psutil.Process().memory_info().vms))
    return min(limits)
