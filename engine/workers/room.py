"""The memory of a worker's KV caches: what they hold, and what a run would add."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.model.cache import Cache
from engine.workers.forwards import Forwards, next_size
from engine.workers.free import device_free
from engine.workers.jobs import Room
from engine.workers.replies import Taken


def taken(forwards: Forwards, job: Room) -> Taken:
    """Return what a worker's caches hold and what a run adds."""
    begin, caches = job.begin, forwards.caches
    held = {name: _held(cache) for name, cache in caches.items() if isinstance(cache, Cache)}
    kept = forwards.kept_states(begin.features)
    rows = {name: _row(forwards, name, kept) for name in job.models}
    size = next_size(forwards.size, begin.slots, begin.capacity)
    dropped = 0 if size == forwards.size else sum(held.values())
    present: Mapping[str, int] = {} if dropped else held
    numbers = size[0] * (size[1] + 1)
    more = sum(max(0, numbers * row - present.get(name, 0)) for name, row in rows.items())
    models = [forwards.models[name] for name in rows if name in forwards.models]
    exact = any(getattr(model, "dtype", torch.int8).itemsize > 2 for model in models)
    row = sum(rows.values())
    return Taken(sum(held.values()), more - dropped, row, _spare(), device_free(), exact)


def _row(forwards: Forwards, name: str, kept: Mapping[str, tuple[int, ...]]) -> int:
    """Return the bytes of one token in a model's cache; 0 for one without keys and values."""
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
    """Return the bytes of this process's GPU that torch has reserved and does not use."""
    if not torch.cuda.is_initialized():
        return 0
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
