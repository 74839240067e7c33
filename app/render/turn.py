"""The lines above the panes: the settings of the turn, and its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from specscope.app import pairs
from specscope.app.jobs.runs import Lane, LiveRun, RunRequest
from specscope.app.render.addresses import report_address
from specscope.app.render.html import clock, run_address, text
from specscope.traces.facts.settings import config_text

Turns: TypeAlias = "Sequence[Sequence[str]]"
"""The names of the runs of each turn."""
WORDS = {
    "downloading": "Downloading the models.",
    "queued": "Waiting for the devices.",
    "loading": "Starting the workers and loading the models. The next turn will reuse them.",
    "running": "Running.",
    "done": "Done.",
    "cancelled": "Stopped. The text so far is kept.",
    "failed": "Some runs failed.",
}


EMPTY = "Your own prompt: type it above, choose methods and press Run."


def turn_line(state: str, lanes: Sequence[Lane] = (), warning: str = "", earlier: Turns = ()) -> str:
    """Return the status of a turn, why it waits, and links to its and earlier turns' traces."""
    runs = [run for lane in lanes for run in lane.runs]
    if state == "idle":
        return f'<div class="app-turn" data-state="idle"><div class="app-empty">{EMPTY}</div></div>'
    names = tuple(lane.name for lane in lanes if lane.name)
    ended = state in ("done", "cancelled", "failed") and names
    alarm = f'<span class="app-warning">{text(warning)}</span>' if warning else ""
    return (
        f'<div class="app-turn" data-state="{state}" role="status"><span class="app-lamp"></span>'
        f"<span>{text(_sentence(state, runs) + _not_begun(state, lanes))}</span>{alarm}"
        f"{_addresses((*earlier, names)) if ended else ''}</div>"
    )


def _not_begun(state: str, lanes: Sequence[Lane]) -> str:
    """Return the names of the methods that a stop kept from beginning; empty without one."""
    waited = [lane.request.title for lane in lanes if not lane.name]
    some = state == "cancelled" and 0 < len(waited) < len(lanes)
    return f" Not begun: {', '.join(waited)}." if some else ""


def _sentence(state: str, runs: Sequence[LiveRun]) -> str:
    ahead = min((run.position for run in runs if run.position), default=0)
    if state == "queued" and ahead:
        return f"Waiting for the devices: {ahead} other run{'s' if ahead > 1 else ''} first."
    if state == "downloading":
        return _download(runs)
    if state == "failed" and all(run.state == "failed" for run in runs):
        return "Failed. Nothing was decoded." if not any(run.run_id for run in runs) else "Failed."
    if state == "running" and len(runs) > 1 and all(run.request.server for run in runs):
        return "Running. The servers are asked one after another, so that none slows another down."
    measured = any(not run.request.profile for run in runs)
    if state in ("running", "loading") and measured and len(runs) > 1:
        return f"{WORDS[state]} Measured methods share the devices, so they run one after another."
    return WORDS[state]


def _download(runs: Sequence[LiveRun]) -> str:
    progress = next((run.progress for run in runs if run.progress is not None), None)
    if progress is None or not progress.file:
        return f"{WORDS['downloading']} Waiting for the hub to answer."
    return f"{WORDS['downloading']} {progress.model}: {progress.percent}%. Other runs continue."


def finished_line(turns: Turns) -> str:
    """Return the line of a turn that ended before the page was loaded again."""
    return f'<div class="app-turn" data-state="done"><span class="app-lamp"></span><span>Done.</span>{_addresses(turns)}</div>'


def _addresses(turns: Turns) -> str:
    *earlier, names = turns
    what = f"Download report of {len(turns)} turns" if earlier else "Download report"
    return (
        f'<span class="app-links"><a href="{run_address(names)}">Permalink</a>'
        f'<a href="{report_address(names, earlier)}" download>{what}</a></span>'
    )


def folded_line(values: Mapping[str, Any], requests: Sequence[RunRequest], passes: int, turn: str) -> str:
    """Return methods, models, sampling and place, with a button that shows the form again.

    `turn` is the id of the turn whose settings they are: a new one folds the form.
    """
    request = requests[0]
    models = request.target or ("" if request.server else pairs.label(values["models"]))
    facts = [
        models.rstrip("/").rpartition("/")[2],
        *(f"drafter {name.rstrip('/').rpartition('/')[2]}" for name in request.drafter),
        "greedy" if request.sampling.greedy else f"temperature {request.sampling.temperature:g}",
        f"{request.limits.max_new_tokens} new tokens",
        clock(request.runtime, request.profile, request.profile_pair),
    ]
    if passes > 1:
        facts.append(f"{passes} passes")
    methods = ", ".join(map(name_of_request, requests))
    facts = [fact for fact in facts if fact]
    return (
        f'<div class="app-folded" data-turn="{text(turn)}"><b>{text(methods)}</b>'
        f'<span>{text(" · ".join(facts))}</span><button type="button" class="app-link">Change settings</button></div>'
    )


def kept_line() -> str:
    return (
        '<div class="app-folded"><span>The conversation of this tab was kept.</span>'
        '<button type="button" class="app-link">Change settings</button></div>'
    )


def name_of_request(request: RunRequest) -> str:
    """Return the title of a method with the settings that differ from the usual ones."""
    config = config_text(request.method, request.config)
    return " · ".join(filter(None, (request.title, config)))
