"""Passes: repeated runs of one method with the same settings. The run shown is the median one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypedDict, TypeVar

from traces.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.trace.events import Header
    from engine.trace.trace import Trace


T = TypeVar("T")


class Spread(TypedDict):
    """The speeds of the passes of a run, in tokens/s."""

    count: int
    """Passes that have a speed."""
    low: float
    high: float


def alternating(items: Sequence[T], passes: int) -> list[tuple[int, T]]:
    """Return (pass, item) in the order of the runs: every other pass goes backwards.

    So a machine that becomes slower in the course of the passes does not favour the first item.
    """
    return [(n, item) for n in range(passes) for item in (items if n % 2 == 0 else items[::-1])]


def median_first(passes: Sequence[Trace]) -> list[Trace]:
    """Return the passes with the median one first: of an even number, the slower of the middle two.

    Of two passes there is no median: their speed is the mean (`traces.race.speed_of`), and the
    slower one is drawn. Passes that are not done are last.
    """
    if len(passes) < 2:
        return list(passes)  # nothing to measure
    found = {id(t): _speed(t) for t in passes}
    done = sorted((t for t in passes if found[id(t)]), key=lambda t: found[id(t)])
    others = [t for t in passes if not found[id(t)]]
    middle = done.pop((len(done) - 1) // 2) if done else None
    return ([middle] if middle else []) + done + others


def spread(passes: Sequence[Trace]) -> Spread | None:
    """Return the slowest and the fastest speed; None with fewer than two passes."""
    if len(passes) < 2:
        return None  # nothing to measure
    found = speeds(passes)
    if len(found) < 2:
        return None
    return {"count": len(found), "low": min(found), "high": max(found)}


def speeds(passes: Sequence[Trace]) -> list[float]:
    """Return the tokens/s of the passes that are done."""
    return [speed for speed in map(_speed, passes) if speed]


def grouped(headers: Sequence[Header]) -> list[list[Header]]:
    """Return the passes of each method with its settings and prompts, the oldest method first."""
    groups: dict[str, list[Header]] = {}
    for header in headers:
        key = json.dumps([header.method, header.config, header.prompt_ids, header.sampling], sort_keys=True)
        groups.setdefault(key, []).append(header)
    return list(groups.values())


def _speed(trace: Trace) -> float:
    """Return the tokens/s of a pass that is done; 0 for any other."""
    return (measure(trace).tokens_per_second or 0.0) if trace.status == "done" else 0.0
