"""The figures of a run whose file tells windows of counts: `engine.trace.events.Window` rows.

A figure is None where a window lacks a count that it needs: what is unknown is never zero.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from specscope.traces.facts.places import Slot, levels_of, slots_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specscope.engine.trace.events import Window

JOINT = " · "
"""Between the category of a request and its name, in the label of its window."""


def whole_windows(windows: Iterable[Window]) -> list[Window]:
    """Return the windows of all drafters together: not those of one among several."""
    return [one for one in windows if not one.drafter]


def total(windows: Iterable[Window], name: str) -> int | None:
    """Return the sum of a count; None if a window does not tell it, or there is none."""
    counts = [getattr(one, name) for one in windows]
    return None if None in counts or not counts else sum(counts)


def places(windows: Sequence[Window]) -> tuple[int, ...]:
    """Return the accepted tokens by place; empty if a window that drafted does not tell them."""
    rows = [one.places for one in windows if one.drafts != 0]
    if not rows or not all(rows):
        return ()
    most = max(map(len, rows))
    return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(most))


def histogram(windows: Iterable[Window]) -> tuple[int, ...]:
    """Return how many drafts had 0, 1, ... accepted tokens; empty if unknown."""
    rows = whole_windows(windows)
    kept, drafts = places(rows), total(rows, "drafts")
    if not kept or not drafts:
        return ()
    reached = [drafts, *kept, 0]
    found = tuple(now - after for now, after in pairwise(reached))
    return found if min(found) >= 0 else ()


def of_one_length(windows: Iterable[Window]) -> bool:
    """Return whether all drafts had as many tokens as there are places."""
    rows = whole_windows(windows)
    kept, drafts = places(rows), total(rows, "drafts")
    return bool(kept) and drafts is not None and total(rows, "drafted") == drafts * len(kept)


def seconds(window: Window) -> float | None:
    """Return the seconds of decoding, else of the window; None if both are unknown."""
    if window.busy is not None:
        return window.busy / 1e9
    return (window.end - window.start) / 1e9 or None


def decoded(window: Window) -> int | None:
    """Return the tokens that were made in `seconds`.

    In those of decoding alone all but the first one, which the prompt's forward makes.
    """
    made = None if window.busy is None else _plus(window.steps, window.accepted)
    return window.tokens if made is None or window.tokens is None else min(window.tokens, made)


def speed(window: Window) -> float | None:
    """Return the tokens per second."""
    return _ratio(decoded(window), seconds(window))


def figures(windows: Iterable[Window]) -> dict[str, Any]:
    """Return the figures that windows determine, by the names of `Metrics`."""
    rows = whole_windows(windows)
    drafts, drafted, accepted = (total(rows, name) for name in ("drafts", "drafted", "accepted"))
    steps, tokens, drafting = (total(rows, name) for name in ("steps", "tokens", "drafting"))
    times = [seconds(one) for one in rows]
    decode = None if None in times or not times else sum(filter(None, times))
    made = [decoded(one) for one in rows]
    pace = None if None in made else sum(filter(None, made))
    kept = histogram(rows)
    gamma = max(0, len(kept) - 1)
    slots: tuple[Slot, ...] = slots_of(kept, gamma) if kept else ()
    fixed = bool(slots) and of_one_length(rows)
    rejected = drafts - kept[-1] if fixed and drafts is not None else None
    tested = None if rejected is None or accepted is None else accepted + rejected
    return {
        "tokens": tokens,
        "seconds": (max(one.end for one in rows) / 1e9 or None) if rows else None,
        "decode_seconds": decode,
        "tokens_per_second": _ratio(pace, decode),
        "tpot_ms": _ratio(None if decode is None else 1e3 * decode, pace),
        "target_forwards": steps,
        "drafted": drafted,
        "accepted": accepted,
        "rejected": rejected,
        "discarded": None if tested is None or drafted is None else drafted - tested,
        "acceptance_rate": _ratio(accepted, drafted),
        "acceptance_rate_tested": _ratio(accepted, tested),
        "tokens_per_target_forward": _ratio(_plus(accepted, steps), steps),
        "mean_accepted_length": _ratio(accepted, drafts),
        "acceptance_length": _ratio(_plus(accepted, drafts), drafts),
        "per_position": slots if fixed else tuple(replace(slot, drafted=None) for slot in slots),
        "per_level": levels_of(kept, gamma) if kept else (),
        "draft_seconds_per_100_tokens": _ratio(None if drafting is None else drafting / 1e7, tokens),
    }


def _plus(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
