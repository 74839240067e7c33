"""Long runs in the page: their spans and some rounds at once, then the rounds that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import MAX_COMPARED, store_of
from specscope.engine.errors import UsageError
from specscope.traces.database.long import Extent
from specscope.traces.database.store import Store
from specscope.traces.view.long import long_document, long_run, range_view, spans_view

LONG = 1000
"""Most spans of runs whose whole document is made at once, in about 0.15 s."""
MOST_ANALYSED = 20_000
"""Most spans of runs whose analysis is made when they are opened, in a few seconds."""
OPENING = 40
"""Rounds whose tokens the first document has, over all runs."""
MOST_ROUNDS = 1000
"""Most rounds of a range of steps."""
MOST_OF_A_STEP = 10_000
"""Most rounds of one step, which may have one for each sequence."""
FURTHEST = 1e12
"""Largest step."""


def long_runs(store: Store | None, ids: Sequence[str]) -> list[Extent] | None:
    """Return the sizes of stored runs that are too long to open whole; None for other runs."""
    if store is None or not ids:
        return None
    sizes = [size for size in map(store.extent, ids) if size is not None and size.end > size.begin]
    return sizes if len(sizes) == len(ids) and sum(size.spans for size in sizes) > LONG else None


class LongRuns:
    """Documents of long stored runs; safe to use from several threads."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def document(self, names: str) -> dict[str, Any] | None:
        """Return the first document of runs that are too long to open whole; None for other runs.

        Of several passes it has the first: the median one is not known before all passes are read.
        """
        ids = [self._id(name.split("~")[0]) for name in names.split(",") if name]
        store = self._service.store
        sizes = long_runs(store, ids)
        if store is None or sizes is None:
            return None
        if len(ids) > MAX_COMPARED:
            raise UsageError(f"more than {MAX_COMPARED} runs are requested; choose fewer")
        share = max(1, OPENING // len(ids))
        runs = (
            long_run(size, store.opening(run, size, share), *store.columns(run, size))
            for run, size in zip(ids, sizes, strict=True)
        )
        outputs = [store.output(*run) for run in zip(ids, sizes, strict=True)] if len(ids) > 1 else []
        return long_document([*runs], sizes, outputs)

    def spans(self, name: str) -> dict[str, Any]:
        """Return what the spans of a run show, without its tokens."""
        return spans_view(store_of(self._service).spans_and_rounds(self._id(name)))

    def rounds(self, name: str, first: int, last: int) -> dict[str, Any]:
        """Return the tokens and decisions of a range of steps of a run."""
        if not 0 <= first <= last < FURTHEST:
            raise UsageError(f"steps {first} to {last} are not a range; the first one is at least 0")
        most = MOST_ROUNDS if first < last else MOST_OF_A_STEP
        found = store_of(self._service).steps(self._id(name), first, last, most)
        if found is None:
            raise UsageError(f"steps {first} to {last} have more than {most} rounds; ask for fewer")
        return range_view(found)

    def _id(self, name: str) -> str:
        run = self._service.find(name)
        return name if run is None else run.run_id
