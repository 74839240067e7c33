"""Sizes and prompts of the bench."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

PROMPTS = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "bench.json"
Note = Callable[[str], None]
"""Called with the name of each measurement as it begins, and with "" after every round."""


@dataclass(frozen=True, slots=True)
class Plan:
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
        return json.loads(PROMPTS.read_text(encoding="utf-8"))["prompts"][: self.prompts]


QUICK = Plan(
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
FULL = Plan(prompts=8, rounds=9, seconds=240, sweep_rounds=3, new_tokens=128, repeats=9)
METHODS = replace(FULL, prompts=8, rounds=5, seconds=120)
"""Sizes for a real pair, whose forwards take longer."""
METHODS_QUICK = replace(METHODS, prompts=4, rounds=3, seconds=40, new_tokens=64, least_rounds=2)
