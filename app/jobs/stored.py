"""Runs by their names: of the queue, in memory or stored."""

from __future__ import annotations

from collections.abc import Sequence

from specscope.app.jobs.service import Service
from specscope.app.named import MAX_PASSES
from specscope.engine.errors import StoreError, UsageError
from specscope.engine.trace.trace import Trace
from specscope.traces.database.store import Store
from specscope.traces.judge.race import median_first

MAX_COMPARED = 8


def store_of(service: Service) -> Store:
    if service.store is None:
        raise StoreError("runs are not stored: SpecScope was started without a database")
    return service.store


def find_traces(service: Service, names: str) -> list[Trace]:
    return median_of(find_passes(service, names))[0]


def median_of(passes: Sequence[Sequence[Trace]]) -> tuple[list[Trace], list[list[Trace]]]:
    """Return the trace that stands for each run, and all its passes, the median one first."""
    ordered = [median_first(group) for group in passes]
    return [group[0] for group in ordered], ordered


def find_passes(service: Service, names: str) -> list[list[Trace]]:
    """Return the passes of comma-separated runs (tickets or ids); skip runs that have not begun.

    `~` joins the passes of one run.
    """
    ids = [name.split("~") for name in names.split(",") if name]
    if not 1 <= len(ids) <= MAX_COMPARED:
        raise UsageError(f"{len(ids)} runs are requested; choose 1 to {MAX_COMPARED}")
    if max(map(len, ids)) > MAX_PASSES:
        raise UsageError(f"{max(map(len, ids))} passes of a run are requested; choose 1 to {MAX_PASSES}")
    found = [[t for name in group if name and (t := service.trace(name)) is not None] for group in ids]
    if not any(found):
        raise UsageError(f"run {names.replace(',', ', ')} has no trace; it has not begun or does not exist")
    return [group for group in found if group]
