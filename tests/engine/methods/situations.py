"""Situations for tests of `plan`."""

from __future__ import annotations

from engine.methods import Situation


def situation(*, c: float = 4.0, **facts: object) -> Situation:
    """Return facts of a cluster of four devices and a drafter of four layers, unless given."""
    defaults: dict[str, object] = {
        "context": 2048,
        "depth": 4,
        "devices": 4,
        "drafters": 1,
        "servers": tuple(4 - drafters for drafters in range(5)),
        "stages": lambda asked: asked or 3,
        "head_levels": lambda kind: 0,
        "planned": lambda settings, best: None,
    }
    return Situation(**{**defaults, **facts, "c": lambda: c})  # type: ignore[arg-type]
