"""The Lab's map: which method is the fastest where, and a race at any of its places."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache

import gradio as gr

from specscope.app.jobs.service import Service
from specscope.app.render.html import alert, note
from specscope.app.render.lab import progress
from specscope.app.render.winners import map_html, race_html
from specscope.app.tabs.settings import Experiment, asked, read, row
from specscope.app.tabs.wiring import QUIET, plain_html
from specscope.engine.errors import SpecScopeError
from specscope.traces.lab.plan import MapPlan
from specscope.traces.lab.winners import VALUES, Result, given_back, results, with_target

TARGETS = (1, 2, 4, 8)
_MAP = (
    "A drafter is 2 to 20 times as fast as the target, and right at a rate: which method decodes fastest on so many "
    "devices? The map is finished; Race runs all methods at one place, and their traces open from the table."
)


@dataclass(frozen=True, slots=True)
class MapSettings:
    """The values of the map's controls."""

    by: str = asked("Compare by", choices=lambda: list(VALUES), default="runs")
    target: int = asked("The target's devices", choices=lambda: list(TARGETS), default=1)
    c: int = asked("c = T(target) / T(drafter)", choices=lambda: list(stored()[0].ratios), default=5)
    rate: float = asked("Acceptance rate", choices=lambda: list(stored()[0].rates), default=0.8)


def build_map(tab: gr.Tab, service: Service) -> None:
    """Lay out the map with its choices, and the race at a place; it is drawn when `tab` opens."""
    made = Experiment("map", MapSettings(), service, _work)
    with made.card("Which method is the fastest?", _MAP) as controls:
        with row():
            controls.add("by", "target", "c", "rate")
            made.add_buttons("Race")
        made.add_result()
        picture = plain_html(elem_id="map-picture")
    looks = [controls["by"], controls["target"]]
    gr.on([tab.select, *(look.change for look in looks)], drawn, looks, picture, **QUIET)


def drawn(by: str, target: int) -> str:
    return map_html(*with_target(*stored(), target), by) if by in VALUES and target in TARGETS else ""


def _work(service: Service, given: MapSettings, stop: threading.Event) -> Generator[tuple[str, str]]:
    plan, found = with_target(stored()[0], [], given.target)
    total = len(plan.races)
    yield progress(0, total, "races"), ""
    try:
        for one in results(plan, given.c, given.rate):
            found.append(one)
            service.hold(one.traces)
            yield progress(len(found), total, "races"), race_html(found)
            if stop.is_set():
                break
    except SpecScopeError as error:
        yield alert(error), race_html(found)
        return
    ended = f"Stopped after {len(found)} of {total} races." if len(found) < total else f"{total} races."
    yield note(f"c = {given.c}, acceptance {given.rate}: {ended}"), race_html(found)


@cache
def stored() -> tuple[MapPlan, list[Result]]:
    """Return plan and results of the finished map: the JSON of `specscope map`."""
    return given_back(read("map"))
