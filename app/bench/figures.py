"""What the bench reports: a figure with its spread, and the bar it has to meet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value for each run, and whatever explains it."""

    values: tuple[float, ...]
    unit: str
    valid: bool = True
    """Whether what was compared is comparable: both sides wrote the same tokens."""
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def median(self) -> float:
        """Median over the runs."""
        return statistics.median(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return median, min, max, runs and unit, then the details."""
        return {
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "runs": len(self.values),
            "unit": self.unit,
            **self.detail,
        }


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound on a median; one of the two is set."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, figure: Figure) -> bool:
        """Whether a figure keeps it; one that compares different texts never does."""
        low_enough = self.at_most is None or figure.median <= self.at_most
        return figure.valid and low_enough and (self.at_least is None or figure.median >= self.at_least)

    def __str__(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


BARS = {
    "autoregressive_over_generate": Bar(at_least=1.4),
    "speculative_over_assisted": Bar(at_least=1.8),
    "pearl_over_speculative": Bar(at_least=1.1),
    "tracing_overhead": Bar(at_most=0.01),
    "spans_per_second": Bar(at_least=50_000),
}
"""Figures without a bar are there to explain the others."""


def judged(figures: Mapping[str, Figure]) -> dict[str, dict[str, Any]]:
    """Return each bar with the median it is held against and whether it is met."""
    return {
        key: {
            **({"at_least": bar.at_least} if bar.at_least is not None else {"at_most": bar.at_most}),
            "median": figures[key].median,
            "met": bar.met(figures[key]),
        }
        for key, bar in BARS.items()
        if key in figures
    }
