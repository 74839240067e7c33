"""Long runs in the page: a part of each at once, then the windows that the timeline shows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from specscope.app.jobs.service import Service
from specscope.engine.errors import UsageError, shown
from specscope.traces.database.store import Store
from specscope.traces.database.windows import Extent, TokenLine
from specscope.traces.view.aligned import (
    AlignedOutput,
    AlignedPart,
    PartRow,
    RowView,
    aligned_rows,
    aligned_tokens,
)
from specscope.traces.view.packed import packed, packed_run
from specscope.traces.view.part import bins_view, part_document, part_sections

LONG = 1000
"""Most spans of runs whose whole document is made at once, in about 0.15 s."""
MOST_ANALYSED = 20_000
"""Most spans of runs whose analysis is made when they are opened, in a few seconds."""
OPENING = 300
"""About how many spans the first part of a document has, over all runs."""
MOST_SPANS = 1200
"""Most spans of a part of one run; the timeline merges spans of less than two pixels anyway."""
MOST_BINS = 2000
MOST_RUNS = 8
FURTHEST = 1e12
"""Largest time of a window in ms: 30 years."""


def long_runs(store: Store | None, ids: Sequence[str]) -> list[Extent] | None:
    """Return the sizes of stored runs that are too long to open whole; None for other runs."""
    if store is None or not ids:
        return None
    sizes = [size for size in map(store.extent, ids) if size is not None and size.end > size.begin]
    return sizes if len(sizes) == len(ids) and sum(size.spans for size in sizes) > LONG else None


class Windows:
    """Parts and bins of stored runs; safe to use from several threads."""

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
        share = OPENING // len(ids)
        parts = [(store.opening(run, size, share), size) for run, size in zip(ids, sizes, strict=True)]
        return packed(part_document(parts))

    def window(
        self, name: str, low: float, high: float, margin: float, bins: int, *, rows: bool = True
    ) -> dict[str, Any]:
        """Return a window of a run: `part`, its rows, or `bins` if it has too many.

        Times are ms of the document; `margin` on either side is read, too, where the rows are few.
        """
        size, store = self._size(name), self._service.store
        if size is None or store is None:
            raise UsageError(f"run {shown(name)} is not stored or has not ended; open it whole")
        if not (-FURTHEST < low < high < FURTHEST and 0 <= margin < FURTHEST and 1 <= bins <= MOST_BINS):
            raise UsageError(
                f"window {low:g} to {high:g} ms with margin {margin:g} in {bins} bins is not valid; "
                f"it needs a start before its end and 1 to {MOST_BINS} bins"
            )
        run = self._id(name)
        start, end = (_ns(t, size) for t in (low - margin, high + margin))
        whole = start <= size.start and end >= size.end
        windows = [(_ns(low, size), _ns(high, size))]
        if not whole or size.spans <= MOST_SPANS:
            windows.insert(0, (start, end))
        for window in windows if rows else []:
            if (found := store.part(run, size, *window, MOST_SPANS)) is not None:
                return packed_run(part_sections(found, size))
        return {"bins": bins_view(store.bins(run, size, start, end, bins), size)}

    def aligned(self, names: str, sequence: int, low: float, high: float) -> AlignedPart:
        """Return the tokens of the first run in a window (ms), and the others' same tokens."""
        ids = [name.split("~")[0] for name in names.split(",") if name][: MOST_RUNS + 1]
        if len(ids) > MOST_RUNS:
            raise UsageError(f"more than {MOST_RUNS} runs are requested; choose fewer")
        sizes, store = [self._size(name) for name in ids], self._service.store
        runs = [(self._id(name), size) for name, size in zip(ids, sizes, strict=True) if size is not None]
        if store is None or not runs or len(runs) < len(ids):
            raise UsageError(f"one of {shown(names)} is not stored or has not ended; open the runs whole")
        if not -FURTHEST < low < high < FURTHEST:
            raise UsageError(f"window {low:g} to {high:g} ms is not valid; it needs a start before its end")
        first = runs[0][1]
        return aligned_part(store, runs, sequence, _ns(low, first), _ns(high, first))

    def _size(self, name: str) -> Extent | None:
        store = self._service.store
        return None if store is None else store.extent(self._id(name))

    def _id(self, name: str) -> str:
        run = self._service.find(name)
        return name if run is None else run.run_id


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
        return round((ns - self.size.begin) / 1e6, 3)

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
