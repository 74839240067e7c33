"""The live panes of a turn: one card per run, with its state and the text so far.

They look like the viewer's panes, which replace them when all runs have ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.render.html import badge, clock, drafter, lossy, text
from engine.methods import METHODS
from engine.trace.events import Commit, Header
from traces.view.settings import config_text, planned_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from app.runs import Lane
    from engine.trace.events import Event

WORDS = {
    "downloading": "downloading",
    "queued": "queued",
    "loading": "loading models",
    "running": "running",
    "done": "done",
    "cancelled": "stopped",
    "failed": "failed",
}
"""Text of each state."""
REFUSED = "Not started; the reason is shown at the control to correct."
KINDS = {"cancelled": "warn", "failed": "bad", "running": "good"}


class LivePane:
    """The pane of one method. `update` reads new events only, and renders each token once."""

    def __init__(self, lane: Lane) -> None:
        self.lane, self.run = lane, lane.current
        run = self.run
        self.html = ""
        self._cursor = 0
        self._name = METHODS[run.request.method].title
        self._badge = clock(run.request.runtime, run.request.profile, run.request.profile_pair)
        self._marks = self._planned = ""
        self._text: dict[int, list[str]] = {0: []}
        """HTML of the tokens, by sequence."""

    def update(self) -> bool:
        """Read the run's new events and state; return whether the HTML changed."""
        if self.run is not self.lane.current:  # the next pass; the text begins again
            self.run, self._cursor, self._text = self.lane.current, 0, {0: []}
        # State before events: an event in between is shown early rather than lost.
        state, position = self.run.state, self.run.position
        events, self._cursor = self.run.since(self._cursor)
        self._take(events)
        before, self.html = self.html, self._render(state, position)
        return self.html != before

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Commit):
                self._text.setdefault(event.sequence, []).append(token(event))
            elif isinstance(event, Header):
                self._text = {i: [] for i in range(len(event.prompts))}
                config = config_text(event.method, event.config)
                self._name = f"{event.title} · {config}" if config else event.title
                self._badge = event.clock
                self._marks = drafter(event) + lossy(event)
                self._planned = planned_text(event)

    def _render(self, state: str, position: int) -> str:
        shown, progress = WORDS[state], self.run.progress
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
            f'<div class="ss-marks">{badge(self._badge, title="Source of the times")}'
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
            if self.run.run_id
            else "Preparing the run: new models are measured first, to plan the drafts.",
            "cancelled": "Stopped before the first token.",
        }.get(state, "")


def token(commit: Commit) -> str:
    """Return a committed token, marked with its origin."""
    ink = commit.text.lstrip()
    space = commit.text[: len(commit.text) - len(ink)]
    return (
        f'<span class="ss-token ss-{text(commit.origin)}">{text(space)}'
        f'<span class="ss-ink">{text(ink)}</span></span>'
    )


def ordinal(n: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, ..."""
    ending = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"
