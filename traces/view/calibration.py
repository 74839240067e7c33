"""Calibration: q of the drafted tokens against their acceptance, by place in the draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.calibration import calibrations, trials
from specscope.traces.view import columns_of, row_of, section
from specscope.traces.view.tokens import short

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.calibration import PlaceCalibration


class BinColumns(TypedDict):
    """The bins with tested tokens, as in `specscope.traces.facts.calibration.Bin`."""

    low: list[float]
    tested: list[int]
    accepted: list[int]
    q: list[float | None]
    expected: list[float | None]
    least: list[float | None]
    most: list[float | None]


class CalibrationView(TypedDict):
    """The tested tokens at one place of the draft whose q is recorded."""

    place: int
    """0 for all places."""
    tested: int
    accepted: int
    q: float | None
    """Mean q."""
    expected: float | None
    """Mean probability of acceptance by the rule; null where nothing is drawn."""
    error: float | None
    """Expected calibration error."""
    bins: BinColumns


@section("calibration", "calibration", need="sums")
def calibration_views(trace: Trace) -> list[CalibrationView]:
    """Return all places together, then each place; empty if no q is recorded."""
    return [_view(one) for one in calibrations(trials(trace))]


def _view(one: PlaceCalibration) -> CalibrationView:
    names = ("q", "expected", "least", "most")
    columns = {name: [short(getattr(b, name)) for b in one.bins] for name in names}
    means = {name: short(getattr(one, name)) for name in ("q", "expected", "error")}
    return row_of(CalibrationView, one, **means, bins=columns_of(BinColumns, one.bins, **columns))
