"""Windows of counts: what an engine counted in each stretch of time, or of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts import counted
from specscope.traces.view import section

if TYPE_CHECKING:
    from specscope.engine.trace.events import Window
    from specscope.engine.trace.trace import Trace

MOST_PLACES = 16
"""Places of a draft in a line of text."""


class CountView(TypedDict):
    """The fields of `events.Window` with rates; null is unknown."""

    label: str
    drafter: str
    t: float
    """Its end, in milliseconds since the first window's start."""
    seconds: float | None
    tokens: int | None
    speed: float | None
    """Tokens per second."""
    drafts: int | None
    drafted: int | None
    accepted: int | None
    length: float | None
    """Tokens per draft, the target's own included."""
    places: list[float]
    """Accepted tokens by place, per draft."""
    drafting: float | None
    """Milliseconds of each draft."""
    running: float | None


@section("counts", "windows of counts")
def counts(trace: Trace) -> list[CountView]:
    return [view_of(row) for row in trace.windows]


def view_of(row: Window) -> CountView:
    drafts = row.drafts or None
    return {
        "label": row.label,
        "drafter": row.drafter,
        "t": row.end / 1e6,
        "seconds": counted.seconds(row),
        "tokens": row.tokens,
        "speed": counted.speed(row),
        "drafts": row.drafts,
        "drafted": row.drafted,
        "accepted": row.accepted,
        "length": 1 + row.accepted / drafts if drafts and row.accepted is not None else None,
        "places": [kept / drafts for kept in row.places] if drafts else [],
        "drafting": row.drafting / drafts / 1e6 if drafts and row.drafting is not None else None,
        "running": row.running,
    }


def line(row: Window) -> str:
    """Return a window as a line of text, with what is known."""
    view = view_of(row)
    drafted, accepted = (view[name] for name in ("drafted", "accepted"))
    share = f" ({accepted / drafted:.0%})" if drafted and accepted is not None else ""
    parts = [
        view["label"] or f"{view['t'] / 1e3:.1f} s",
        view["drafter"],
        "" if view["drafts"] is None else f"{view['drafts']:,} drafts",
        f"{_known(accepted)}/{_known(drafted)} accepted{share}",
        "" if view["length"] is None else f"{view['length']:.2f} tokens/round",
        f"by place {' '.join(f'{rate:.0%}' for rate in view['places'][:MOST_PLACES])}"
        if view["places"]
        else "",
        "" if view["speed"] is None else f"{view['speed']:.1f} tokens/s",
    ]
    return " · ".join(filter(None, parts))


def _known(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,}"
