"""Moving a prefix's KV rows from one copy of a model to another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from specscope.engine.errors import SpecScopeError
from specscope.engine.worker.jobs import Export, Import, Stamp

if TYPE_CHECKING:
    from specscope.engine.worker.forwards import Forwards


def move_rows(forwards: Forwards, job: Export | Import, stamps: list[Stamp]) -> bytes | None:
    """Return the rows that a job exports, or add those that it imports.

    They are those of the prefix from `job.start` on, without its last token's. SpecScopeError if
    rows to export, or rows before those to import, are not cached.
    """
    (prefix,) = job.prefixes
    began, end, slot = time.perf_counter_ns(), len(prefix) - 1, forwards.slot(prefix.sequence)
    cache, data = forwards.cache(job.model), None
    count = end if isinstance(job, Export) else job.start
    path = cache.match(slot, prefix.tokens, count)
    if len(path) < count:
        raise SpecScopeError(
            f"only {len(path)} of {count} KV rows of the {job.model} are here; none can be moved"
        )
    if isinstance(job, Export):
        data = cache.export_kv(slot, path[job.start :])
    else:
        cache.keep(slot, path)
        cache.import_kv(slot, prefix.tokens[job.start : end], job.data)
    stamps.append(Stamp("communicate", began, time.perf_counter_ns(), end - job.start, job.start))
    return data
