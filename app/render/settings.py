"""The settings of a turn in one line, which replaces the form after Run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app import pairs
from app.render.html import clock, text
from engine.methods import METHODS
from traces.view.settings import config_text

if TYPE_CHECKING:
    from app.runs import Lane


def folded_line(values: Mapping[str, Any], lanes: Sequence[Lane]) -> str:
    """Return methods, models, sampling and place, with a button that shows the form again."""
    first = lanes[0]
    request = first.request
    models = request.target or pairs.label(values["models"])
    facts = [
        models.rstrip("/").rpartition("/")[2],
        *(f"drafter {name.rstrip('/').rpartition('/')[2]}" for name in request.drafter),
        "greedy" if request.sampling.greedy else f"temperature {request.sampling.temperature:g}",
        f"{request.limits.max_new_tokens} new tokens",
        clock(request.runtime, request.profile, request.profile_pair),
    ]
    if len(first.runs) > 1:
        facts.append(f"{len(first.runs)} passes")
    methods = ", ".join(map(name_of_lane, lanes))
    return (
        f'<div class="app-folded" data-turn="{text(first.runs[0].ticket)}"><b>{text(methods)}</b>'
        f'<span>{text(" · ".join(facts))}</span><button type="button" class="app-link">Change settings</button></div>'
    )


def kept_line() -> str:
    """Return the line after a reload, when the settings of the last turn are unknown."""
    return (
        '<div class="app-folded"><span>The conversation of this tab was kept.</span>'
        '<button type="button" class="app-link">Change settings</button></div>'
    )


def name_of_lane(lane: Lane) -> str:
    """Return the title of a pane's method with the settings that differ from the usual ones."""
    request = lane.request
    config = config_text(request.method, request.config)
    return " ".join(filter(None, (METHODS[request.method].title, config)))
