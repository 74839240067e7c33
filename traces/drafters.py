"""Which drafter would be right more often: the target's own weights in fewer bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from engine.pairs.forms import form_of
from traces.imported import origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.trace.events import Header
    from traces.places import Level

OFTEN = 0.25
"""Share of wrong first tokens from which on another drafter is named."""
FEWEST = 8
"""Rounds that must have judged a first token."""
FORM = "int4"
OTHER = (
    f"The target's own weights in 4 bits ({FORM}) need no training. On SmolLM2 at temperature 0, {FORM} agrees with "
    "the target on 99 % of the tokens (its file has 4 bits already), int8 on 93 to 95 %."
)
"""Greedy agreement on SmolLM2; of other targets nothing was measured."""


class OtherDrafter(TypedDict):
    """A run with another drafter."""

    method: str
    config: dict[str, Any]
    drafter: str
    """`int4` or `int8`."""


def wrong_drafter(header: Header, draft_forwards: int | None, levels: Iterable[Level]) -> str:
    """Return that a drafter is often wrong, and which one is wrong less often; else nothing.

    A virtual run has no such sentence: its profile has the times of one drafter.

    Args:
        header: Of a run with this drafter.
        draft_forwards: Of its runs; 0 or None if no model drafted.
        levels: Acceptance by level of its runs.
    """
    by_model = draft_forwards and header.drafter_path and "head" not in header.environment
    if header.virtual or origin(header) or not by_model or form_of(header.drafter_path):
        return ""
    first = next((level for level in levels if level.level == 1), None)
    if first is None or first.reached < FEWEST or 1 - first.rate < OFTEN:
        return ""
    return f"This drafter is wrong in {100 * (1 - first.rate):.0f} % of the first tokens. {OTHER}"
