"""One loop reads all runs of a turn and yields the changes of the page as frames."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from specscope.app.jobs.runs import Lane, LiveRun
from specscope.app.render.history import KINDS
from specscope.app.render.html import badge, clock, drafter, lossy, name_of, text
from specscope.engine.trace.events import Commit, Event, Header, Window
from specscope.traces.facts.imported import origin, shown_id
from specscope.traces.facts.settings import planned_text
from specscope.traces.view.counts import line

WORDS = {"loading": "loading models", "cancelled": "stopped"}
"""The states whose name is no word for people."""
REFUSED = "Not started. The message at Run says what to correct."


class LivePane:
    """The pane of one method. `update` reads new events only, and renders each token once."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.run = lane, lane.current
        run = self.run
        self.html = ""
        self._cursor = self._settled = 0
        self._name, request = run.name, run.request
        self._badge = clock(request.runtime, request.profile, request.profile_pair) if request.decodes else ""
        self._marks = self._planned = ""
        self._text: dict[int, list[str]] = {0: []}
        """HTML of the tokens, by sequence."""
        self._foreign = False
        """Whether another program decodes: its tokens may have no texts."""

    def update(self) -> bool:
        """Read the run's new events and state; return whether the HTML changed."""
        if self.run is not self.lane.current:  # the next pass; the text begins again
            self.run, self._cursor, self._text = self.lane.current, 0, {0: []}
        if self._settled != self.run.settled:
            self._settled, self._cursor, self._text = self.run.settled, 0, {0: []}
        # State before events: an event in between is shown early rather than lost.
        state, position = self.run.state, self.run.position
        events, self._cursor = self.run.since(self._cursor)
        self._take(events)
        before, self.html = self.html, self._render(state, position)
        return self.html != before

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Commit):
                named = event.text or not self._foreign
                shown = event if named else replace(event, text=shown_id(event))
                self._text.setdefault(event.sequence, []).append(token(shown))
            elif isinstance(event, Window):
                self._text[0] = [window(event)]
            elif isinstance(event, Header):
                self._text = {i: [] for i in range(len(event.prompts))}
                self._name = name_of(event)
                self._badge = event.clock
                self._foreign = origin(event) is not None
                self._marks = drafter(event) + lossy(event)
                self._planned = planned_text(event)

    def _render(self, state: str, position: int) -> str:
        shown, progress = WORDS.get(state, state), self.run.progress
        if position:
            shown += f" · {ordinal(position)} in line"
        elif state == "downloading" and progress is not None and progress.file:
            shown += f" · {progress.percent}%"
        if len(self.lane.runs) > 1 and state not in ("failed", "cancelled"):
            shown += f" · pass {self.lane.number + 1} of {len(self.lane.runs)}"
        message = self._message(state)
        kind = " ss-bad" if state == "failed" else ""
        line = f'<p class="ss-message{kind}">{text(message)}</p>' if message else ""
        plan = f'<p class="ss-note ss-planned">{text(self._planned)}</p>' if self._planned else ""
        begun = "yes" if self.run.run_id else "no"
        # The text is last and its elements stay open, so that the page can append to it.
        return (
            f'<section class="ss-card ss-pane app-pane" data-state="{state}" data-begun="{begun}" aria-label="{text(self._name)}">'
            f'<header class="ss-pane-head"><h3>{text(self._name)}</h3></header>'
            f'<div class="ss-marks">{badge(self._badge, title="Source of the times") if self._badge else ""}'
            f"{badge(shown, KINDS.get(state, ''))}{self._marks}</div>{plan}{line}"
            f'<div class="ss-text">{self._sequences()}'
        )

    def _sequences(self) -> str:
        several = len(self._text) > 1
        heads = {i: f'<span class="ss-note">{i + 1} </span>' if several else "" for i in self._text}
        parts = [f'<div class="ss-sequence">{heads[i]}{"".join(words)}' for i, words in self._text.items()]
        return "</div>".join(parts)

    def _message(self, state: str) -> str:
        if state == "failed":
            return REFUSED if self.run.refused else self.run.error
        if any(self._text.values()):
            return ""
        return {
            "downloading": str(self.run.progress or ""),
            "queued": "Waiting for the devices, which runs use one at a time.",
            "loading": "Starting the workers and loading the models.",
            "running": "Waiting for the first token."
            if self.run.run_id or self.run.request.server
            else "Preparing the run: new models are measured first, to plan the drafts.",
            "cancelled": "Stopped before the first token.",
        }.get(state, "")


def token(commit: Commit) -> str:
    ink = commit.text.lstrip()
    space = commit.text[: len(commit.text) - len(ink)]
    return (
        f'<span class="ss-token ss-{text(commit.origin)}">{text(space)}'
        f'<span class="ss-ink">{text(ink)}</span></span>'
    )


def window(row: Window) -> str:
    """Return the newest window of counts as a line."""
    return f'<p class="ss-note">{text(line(row))}</p>'


def ordinal(n: int) -> str:
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


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


async def frames(lanes: Sequence[Lane], *, own: bool = True) -> AsyncIterator[Frame]:
    """Yield frames until all runs have ended. They go on if the page is left or reloaded.

    Of runs that are not this program's `own`, each has a document as soon as it begins.
    """
    panes, runs = [LivePane(lane) for lane in lanes], [run for lane in lanes for run in lane.runs]
    state, due, begun, drawn = "", 0.0, 0, False
    pause = REDRAW if all(run.request.profile for run in runs) else 2 * REDRAW
    while True:
        ended = all(run.ended for run in runs)
        changed = {i: pane.html for i, pane in enumerate(panes) if pane.update()}
        now, before, state = time.monotonic(), state, turn_state([run.state for run in runs])
        started = sum(bool(run.run_id) for run in runs)
        if started > begun and not (own and begun):
            begun, due, drawn = started, now + (FIRST if own else 0), False
        drawn = drawn and not changed
        draw = begun > 0 and not drawn and (ended or now >= due)
        if draw:
            # Windows of counts have no deltas, and few rows.
            due, pause, drawn = now + pause, pause if any(run.settled for run in runs) else 2 * pause, True
        if ended or changed or draw or state != before:
            yield Frame(changed, state, draw or (ended and begun > 0), ended)
        if ended:
            return
        await _tick(runs)
