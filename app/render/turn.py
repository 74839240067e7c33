"""The status line above the panes; tests and `app.js` read its `data-state`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.render.html import text
from app.routes import report_address, run_address

if TYPE_CHECKING:
    from app.runs import Lane, LiveRun

WORDS = {
    "downloading": "Downloading the models.",
    "queued": "Waiting for the devices.",
    "loading": "Starting the workers and loading the models. The next turn will reuse them.",
    "running": "Running.",
    "done": "Done.",
    "cancelled": "Stopped. The text so far is kept.",
    "failed": "Some runs failed.",
}


EMPTY = (
    "<b>Type a prompt and press Run.</b><p>Each method answers in its own pane as you watch. The timeline then shows "
    "when each device worked and for which it waited; hover over a token to see who drafted it and which rule "
    "accepted it; replay the run at any speed.</p>"
)


def turn_line(state: str, lanes: Sequence[Lane] = (), warning: str = "") -> str:
    """Return the status of a turn, the reason for waiting, and links to finished traces.

    Args:
        state: State of the turn.
        lanes: Its panes.
        warning: Why measured times may be wrong; empty for no reason.
    """
    runs = [run for lane in lanes for run in lane.runs]
    if state == "idle":
        return f'<div class="app-turn" data-state="idle"><div class="app-empty">{EMPTY}</div></div>'
    return (
        f'<div class="app-turn" data-state="{state}" role="status"><span class="app-lamp"></span>'
        f"<span>{text(_sentence(state, runs))}</span>{_warning(warning)}{_links(state, lanes)}</div>"
    )


def _sentence(state: str, runs: Sequence[LiveRun]) -> str:
    ahead = _ahead(runs)
    if state == "queued" and ahead:
        return f"Waiting for the devices: {ahead} other run{'s' if ahead > 1 else ''} first."
    if state == "downloading":
        return _download(runs)
    if state == "failed" and all(run.state == "failed" for run in runs):
        return "Failed. Nothing was decoded." if not any(run.run_id for run in runs) else "Failed."
    measured = any(not run.request.profile for run in runs)
    if state in ("running", "loading") and measured and len(runs) > 1:
        return f"{WORDS[state]} Measured methods share the devices, so they run one after another."
    return WORDS[state]


def _download(runs: Sequence[LiveRun]) -> str:
    progress = next((run.progress for run in runs if run.progress is not None), None)
    if progress is None or not progress.file:
        return f"{WORDS['downloading']} Waiting for the hub to answer."
    return f"{WORDS['downloading']} {progress.model}: {progress.percent}%. Other runs continue."


def _ahead(runs: Sequence[LiveRun]) -> int:
    """Return the number of runs before the turn's first one: queued runs and the current one."""
    places = [run.position for run in runs if run.position]
    return min(places, default=0)


def _warning(message: str) -> str:
    return f'<span class="app-warning">{text(message)}</span>' if message else ""


def _links(state: str, lanes: Sequence[Lane]) -> str:
    names = [lane.name for lane in lanes if lane.name]
    if state not in ("done", "cancelled", "failed") or not names:
        return ""
    return (
        f'<span class="app-links"><a href="{run_address(names)}">Permalink</a>'
        f'<a href="{report_address(names)}" download>Download report</a></span>'
    )
