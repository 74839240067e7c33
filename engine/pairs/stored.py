"""The drafters and heads that are stored with the project, by the name of their pair."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from engine.types import MOST_DRAFTERS, drafter_key

PAIRS = Path(__file__).resolve().parents[2] / "assets" / "pairs"
"""Directory of the bundled pairs."""


def stored_drafters(name: str) -> tuple[Path, ...]:
    """Return the directories of the drafters that are stored with a named pair, in order."""
    drafters = (PAIRS / name / drafter_key(i) for i in range(MOST_DRAFTERS))
    return tuple(takewhile(Path.is_dir, drafters))


def stored_heads(name: str) -> frozenset[str]:
    """Return the kinds of the drafting heads that are stored with a named pair."""
    heads = PAIRS / name / "heads"
    return (
        frozenset(path.name for path in heads.iterdir() if path.is_dir()) if heads.is_dir() else frozenset()
    )
