"""The estimate of each draft length, from the run's own counts and times."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from specscope.engine.errors import UsageError
from specscope.traces.lengths.best import best_length, interval_text
from specscope.traces.view import row_of

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics


class LengthRow(TypedDict):
    """The fields of `best.Length` that are drawn; null is unknown."""

    length: int
    tokens: float
    value: float | None
    low: float | None
    high: float | None
    text: str
    """The interval."""
    beyond: bool
    alike: bool


class BestView(TypedDict):
    """The fields of `best.Best`."""

    name: str
    unit: str
    used: int
    measured: float | None
    best: int | None
    sentence: str
    notes: list[str]
    lengths: list[LengthRow]


def best_view(trace: Trace, metrics: Metrics, plain: Trace | None) -> BestView | None:
    """Return what each draft length would bring; None if a run does not tell it."""
    if trace.footer is None:
        return None
    try:
        found = best_length(trace, plain, metrics=metrics)
    except UsageError:
        return None
    if not found.unit:
        return None
    rows = [
        row_of(LengthRow, one, value=one.value, text=interval_text(one, found.unit)) for one in found.lengths
    ]
    return row_of(BestView, found, sentence=found.sentence, notes=list(found.notes), lengths=rows)
