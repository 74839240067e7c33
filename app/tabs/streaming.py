"""From runs to frames: one loop reads all runs of a turn and says what changed on the page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.render.panes import LivePane

if TYPE_CHECKING:
    from app.runs import LiveRun

TICK = 0.09
"""Seconds between two looks at the runs."""
REDRAW = 2.5
"""Seconds between two drawings of the live timeline. The browser may draw on the very cores that are being measured:
a short comparison is drawn once, when it has ended."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What changed since the last one."""

    panes: dict[int, str] = field(default_factory=dict)
    """HTML of the panes that look different, by place."""
    state: str = "running"
    """Of the turn as a whole: downloading, queued, loading, running, then done, cancelled or failed."""
    draw: bool = False
    """Whether the timeline should be drawn anew."""
    last: bool = False


def turn_state(states: Sequence[str]) -> str:
    """Return the state of a turn from those of its runs."""
    for going in ("running", "loading", "downloading"):
        if going in states:
            return going
    if "queued" in states:
        # Between two runs of a turn nothing runs for a moment: that is still running.
        return "running" if "done" in states else "queued"
    for ended in ("cancelled", "failed"):
        if ended in states:
            return ended
    return "done"


async def frames(runs: Sequence[LiveRun]) -> AsyncIterator[Frame]:
    """Yield frames until all runs have ended; the last one says so. Leaving early cancels the runs."""
    panes = [LivePane(run) for run in runs]
    state, drawn, begun = "", 0.0, False
    pause = REDRAW if all(run.request.profile for run in runs) else 2 * REDRAW
    try:
        while True:
            ended = all(run.ended for run in runs)
            changed = {i: pane.html for i, pane in enumerate(panes) if pane.update()}
            now, before, state = time.monotonic(), state, turn_state([run.state for run in runs])
            if not begun and any(run.run_id for run in runs):
                begun, drawn = True, now
            draw = begun and bool(changed) and (ended or now - drawn >= pause)
            drawn = now if draw else drawn
            if ended or changed or state != before:
                yield Frame(changed, state, draw or (ended and begun), ended)
            if ended:
                return
            await asyncio.sleep(TICK)
    finally:
        for run in runs:
            if not run.ended:
                run.cancel()
