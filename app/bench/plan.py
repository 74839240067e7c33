"""How long the bench measures, and what it asks the models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

PROMPTS = Path(__file__).resolve().parents[2] / "assets" / "prompts" / "bench.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one bench run."""

    prompts: int
    rounds: int
    """Of each comparison: every contestant once on every prompt."""
    seconds: float
    """Of each comparison at most, once it has three rounds."""
    sweep_rounds: int
    new_tokens: int
    repeats: int
    """Of what takes no decoding: costs of forwards and events, stored spans."""
    spans: int
    memory_runs: int
    speculative_gammas: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    pearl_gammas: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Sizes of EMS-SD's batches, the smallest first."""
    batch_bases: tuple[str, ...] = ("llma", "speculative")
    batch_prompts: int = 16
    batch_tokens: int = 96
    batch_rounds: int = 3

    def questions(self) -> list[str]:
        """Return the prompts: the first ones of the list."""
        return json.loads(PROMPTS.read_text(encoding="utf-8"))["prompts"][: self.prompts]


QUICK = Plan(
    prompts=3,
    rounds=5,
    seconds=40,
    sweep_rounds=2,
    new_tokens=128,
    repeats=5,
    spans=50_000,
    memory_runs=1,
    batches=(1, 8),
    batch_bases=("llma",),
    batch_prompts=8,
    batch_tokens=64,
)
FULL = Plan(
    prompts=8, rounds=9, seconds=240, sweep_rounds=3, new_tokens=128, repeats=9, spans=200_000, memory_runs=3
)
