"""Cached KV rows that move from one device's copy of a model to another's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.errors import SpecScopeError
from engine.workers.jobs import Export, Import
from engine.workers.replies import Stamp

if TYPE_CHECKING:
    import numpy as np

    from engine.types import Prefix
    from engine.workers.forwards import Forwards


def export_rows(forwards: Forwards, job: Export, stamps: list[Stamp]) -> bytes:
    """Return the KV rows of a prefix from `job.start` on, without its last token's."""
    (prefix,) = job.prefixes
    began, end = time.perf_counter_ns(), len(prefix) - 1
    path = _cached_rows(forwards, job.model, prefix, end)
    data = forwards.cache(job.model).export_kv(forwards.slot(prefix.sequence), path[job.start :])
    stamps.append(Stamp("communicate", began, time.perf_counter_ns(), end - job.start, job.start))
    return data


def import_rows(forwards: Forwards, job: Import, stamps: list[Stamp]) -> None:
    """Add exported KV rows after the first `job.start` rows, which are cached here."""
    (prefix,) = job.prefixes
    began, end, slot = time.perf_counter_ns(), len(prefix) - 1, forwards.slot(prefix.sequence)
    cache = forwards.cache(job.model)
    cache.keep(slot, _cached_rows(forwards, job.model, prefix, job.start))
    cache.import_kv(slot, prefix.tokens[job.start : end], job.data)
    stamps.append(Stamp("communicate", began, time.perf_counter_ns(), end - job.start, job.start))


def _cached_rows(forwards: Forwards, model: str, prefix: Prefix, count: int) -> np.ndarray:
    """Return the indices of a prefix's first `count` rows in its slot, (count,) int64.

    Raises:
        SpecScopeError: A row is not cached.
    """
    path = forwards.cache(model).match(forwards.slot(prefix.sequence), prefix.tokens, count)
    if len(path) < count:
        raise SpecScopeError(
            f"only {len(path)} of {count} KV rows of the {model} are here; none can be moved"
        )
    return path
