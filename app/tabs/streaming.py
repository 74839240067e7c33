"""One loop reads all runs of a turn and yields the changes of the page as frames."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.render.panes import LivePane

if TYPE_CHECKING:
    from app.runs import Lane, LiveRun

TICK = 0.09
"""Seconds between two reads of the runs."""
STEPS = 9
"""Parts of a tick: a stop shows after the next one."""
FIRST = 0.4
"""Seconds from the beginning of the first run to the first document of the live timeline."""
REDRAW = 2.5
"""Seconds to its second document; measured runs wait twice as long. Each pause is twice the last.

Documents may use the cores that are being measured. Between them, deltas let the timeline grow. A
short comparison is drawn at its end only."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Changes since the last frame."""

    panes: dict[int, str] = field(default_factory=dict)
    """HTML of changed panes, by index."""
    state: str = "running"
    """State of the turn: downloading, queued, loading, running, done, cancelled or failed."""
    draw: bool = False
    """Whether to draw the timeline again."""
    last: bool = False


def turn_state(states: Sequence[str]) -> str:
    """Return the state of a turn from the states of its runs."""
    for active in ("running", "loading", "downloading"):
        if active in states:
            return active
    if "queued" in states:
        # The turn keeps running in the moment between two of its runs.
        return "running" if "done" in states else "queued"
    for ended in ("cancelled", "failed"):
        if ended in states:
            return ended
    return "done"


async def _tick(runs: Sequence[LiveRun]) -> None:
    """Wait for the next read of the runs; after a stop, only until all runs have ended."""
    for _ in range(STEPS):
        await asyncio.sleep(TICK / STEPS)
        if any(run.stopped.is_set() for run in runs) and all(run.ended for run in runs):
            return


async def frames(lanes: Sequence[Lane]) -> AsyncIterator[Frame]:
    """Yield frames until all runs have ended. They go on if the page is left or reloaded."""
    panes, runs = [LivePane(lane) for lane in lanes], [run for lane in lanes for run in lane.runs]
    state, due, begun = "", 0.0, False
    pause = REDRAW if all(run.request.profile for run in runs) else 2 * REDRAW
    while True:
        ended = all(run.ended for run in runs)
        changed = {i: pane.html for i, pane in enumerate(panes) if pane.update()}
        now, before, state = time.monotonic(), state, turn_state([run.state for run in runs])
        if not begun and any(run.run_id for run in runs):
            begun, due = True, now + FIRST
        draw = begun and bool(changed) and (ended or now >= due)
        if draw:
            due, pause = now + pause, 2 * pause
        if ended or changed or state != before:
            yield Frame(changed, state, draw or (ended and begun), ended)
        if ended:
            return
        await _tick(runs)
