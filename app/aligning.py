"""Long runs token by token: the tokens of a window, and the same tokens of the other runs."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from engine.errors import UsageError
from traces.view.aligned import Output, aligned_rows, aligned_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traces.bins import Line
    from traces.store import Store
    from traces.view.aligned import AlignedPart, PartRow, RowView
    from traces.windows import Extent

MOST = 600
"""Most tokens of a window that are shown."""


class _Stored:
    """A stored run, whose lines are read once."""

    def __init__(self, store: Store, run: str, size: Extent) -> None:
        self.store, self.run, self.size = store, run, size
        self.line = cache(self._line)
        self.output = Output(store.header(run), lambda sequence: self.line(sequence).ids.tolist())

    def _line(self, sequence: int) -> Line:
        return self.store.line(self.run, self.size, sequence)

    def clock(self, ns: int) -> float:
        """Return the ms since decoding began, as in the document."""
        return round((ns - self.size.begin) / 1e6, 3)

    def row(self, view: RowView, first: int, shown: int) -> PartRow:
        """Return the run's tokens beside those of the reference run."""
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
    """Return the tokens of a window of the first run, and the same tokens of the other runs.

    Args:
        store: Has the runs.
        runs: Ids and sizes, in the order shown.
        sequence: A sequence of the first run.
        low: Start of the window, in ns since that run's start.
        high: Its end.

    Raises:
        UsageError: The first run has no such sequence.
        StoreError: A run cannot be read.
    """
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
