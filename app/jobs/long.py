"""Long runs in the page: their spans and some rounds at once, then the rounds that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import MAX_COMPARED, store_of
from specscope.engine.errors import UsageError, shown
from specscope.traces.database.long import Extent, TokenLine
from specscope.traces.database.store import Store
from specscope.traces.view.aligned import (
    AlignedOutput,
    AlignedPart,
    PartRow,
    RowView,
    aligned_rows,
    aligned_tokens,
)
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
"""Largest time of a window in ms, 30 years, and largest step."""


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
        _check_number(ids)
        share = max(1, OPENING // len(ids))
        runs = (
            long_run(size, store.opening(run, size, share), *store.columns(run, size))
            for run, size in zip(ids, sizes, strict=True)
        )
        return long_document([*runs])

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

    def aligned(self, names: str, sequence: int, low: float, high: float) -> AlignedPart:
        """Return the tokens of the first run in a window (ms), and the others' same tokens."""
        ids = [name.split("~")[0] for name in names.split(",") if name][: MAX_COMPARED + 1]
        _check_number(ids)
        runs = [(self._id(name), self._size(name)) for name in ids]
        if not runs:
            raise UsageError("0 runs are requested; choose at least one")
        if not -FURTHEST < low < high < FURTHEST:
            raise UsageError(f"window {low:g} to {high:g} ms is not valid; it needs a start before its end")
        first = runs[0][1]
        return aligned_part(store_of(self._service), runs, sequence, _ns(low, first), _ns(high, first))

    def _size(self, name: str) -> Extent:
        store = self._service.store
        size = None if store is None else store.extent(self._id(name))
        if size is None:
            raise UsageError(f"run {shown(name)} is not stored or has not ended; open it whole")
        return size

    def _id(self, name: str) -> str:
        run = self._service.find(name)
        return name if run is None else run.run_id


def _check_number(ids: Sequence[str]) -> None:
    if len(ids) > MAX_COMPARED:
        raise UsageError(f"more than {MAX_COMPARED} runs are requested; choose fewer")


def _ns(ms: float, size: Extent) -> int:
    return max(size.start, min(size.end, size.begin + round(ms * 1e6)))


MOST = 600


class _Stored:
    """A stored run, whose lines are read once."""

    def __init__(self, store: Store, run: str, size: Extent) -> None:
        self.store, self.run, self.size = store, run, size
        self.line = cache(self._line)
        self.output = AlignedOutput(store.header(run), lambda sequence: self.line(sequence).ids.tolist())

    def _line(self, sequence: int) -> TokenLine:
        return self.store.line(self.run, self.size, sequence)

    def clock(self, ns: int) -> float:
        return round((ns - self.size.begin) / 1000) / 1000

    def row(self, view: RowView, first: int, shown: int) -> PartRow:
        if view["reason"]:
            return {**view, "length": 0, "before": 0.0, "tokens": []}
        sequence = view["sequence"]
        times = self.line(sequence).times
        count = max(0, min(shown, view["same"] - first))
        found = self.store.commits(self.run, self.size, sequence, first, count) if count else []
        before = self.clock(int(times[first - 1])) if found and first else 0.0
        return {**view, "length": len(times), "before": before, "tokens": aligned_tokens(found, self.clock)}


def aligned_part(
    store: Store, runs: Sequence[tuple[str, Extent]], sequence: int, low: int, high: int
) -> AlignedPart:
    """Return the tokens of the first run in a window (ns), and the others' same tokens."""
    stored = [_Stored(store, run, size) for run, size in runs]
    sequences = len(stored[0].output.header.prompt_ids)
    if not 0 <= sequence < sequences:
        raise UsageError(f"sequence {sequence} is not one of the run's {sequences}")
    times = stored[0].line(sequence).times
    first, end = int(times.searchsorted(low)), int(times.searchsorted(high, "right"))
    views = aligned_rows([run.output for run in stored], sequence)
    shown = min(MOST, end - first)
    rows = [run.row(view, first, shown) for run, view in zip(stored, views, strict=True)]
    return {"first": first, "inside": end - first, "rows": rows}
