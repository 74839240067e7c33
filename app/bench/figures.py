"""Sizes of the bench, its figures with their spread, and the bars some of them must meet."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specscope.app.named import bench_prompts

Note = Callable[[str], None]
"""Called with the name of each measurement as it begins, and with "" after every round."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """Sizes of one bench run."""

    prompts: int
    rounds: int
    """Most rounds of a race; in a round every contestant decodes every prompt."""
    seconds: float
    """Time after which no round of a race begins, once there were enough."""
    sweep_rounds: int
    new_tokens: int
    repeats: int
    speculative_gammas: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    pearl_gammas: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    least_rounds: int = 3
    """Rounds of a race that are run even beyond its time."""
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Batch sizes of EMS-SD, in ascending order."""
    batch_bases: tuple[str, ...] = ("llma", "speculative")
    batch_prompts: int = 16
    batch_tokens: int = 96
    batch_rounds: int = 3

    def questions(self) -> list[str]:
        return bench_prompts()[: self.prompts]


QUICK = BenchPlan(
    prompts=3,
    rounds=5,
    seconds=40,
    sweep_rounds=2,
    new_tokens=128,
    repeats=5,
    batches=(1, 8),
    batch_bases=("llma",),
    batch_prompts=8,
    batch_tokens=64,
)
FULL = BenchPlan(prompts=8, rounds=9, seconds=240, sweep_rounds=3, new_tokens=128, repeats=9)
METHODS = replace(FULL, prompts=8, rounds=5, seconds=120)
"""Sizes for a real pair, whose forwards take longer."""
METHODS_QUICK = replace(METHODS, prompts=4, rounds=3, seconds=40, new_tokens=64, least_rounds=2)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured quantity: one value per round or repeat, with details."""

    values: tuple[float, ...]
    unit: str
    valid: bool = True
    """False if the two sides of a comparison wrote different tokens."""
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def to_dict(self) -> dict[str, Any]:
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
    """A lower or an upper bound on a median."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, figure: Measurement) -> bool:
        """Whether a figure meets the bound; an invalid figure never does."""
        low_enough = self.at_most is None or figure.median <= self.at_most
        return figure.valid and low_enough and (self.at_least is None or figure.median >= self.at_least)

    def __str__(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


_SPEED_UPS = {"speculative": 2.1, "pearl": 2.6, "dsi": 2.3, "assisted": 1.9}
"""Least speed-up over autoregressive decoding, with prefill and without."""

BARS = {
    "autoregressive_over_generate": Bar(at_least=1.4),
    "speculative_over_assisted": Bar(at_least=1.8),
    "pearl_over_speculative": Bar(at_least=1.1),
    **{f"{key}_over_autoregressive": Bar(at_least=ratio) for key, ratio in _SPEED_UPS.items()},
    **{f"{key}_over_autoregressive_after_prefill": Bar(at_least=ratio) for key, ratio in _SPEED_UPS.items()},
    "best_head_over_autoregressive": Bar(at_least=1.4),
    "copying_over_autoregressive": Bar(at_least=1.3),
    "decode_over_floor_7B": Bar(at_most=1.4),
    "decode_over_floor_16_rows_7B": Bar(at_most=1.6),
    "decode_over_floor_1B": Bar(at_most=2.2),
    "colocated_gain": Bar(at_least=1.2),
    "orchestration": Bar(at_most=0.05),
    "recorded_span_ns": Bar(at_most=5000),
}
"""Bars by figure; the other figures explain these."""


def judged(figures: Mapping[str, Measurement], bars: Mapping[str, Bar] = BARS) -> dict[str, dict[str, Any]]:
    return {
        key: {
            **({"at_least": bar.at_least} if bar.at_least is not None else {"at_most": bar.at_most}),
            "median": figures[key].median,
            "met": bar.met(figures[key]),
        }
        for key, bar in bars.items()
        if key in figures
    }
