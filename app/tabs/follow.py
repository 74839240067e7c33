"""Files that other processes write, live in the History tab: chosen there, or by the address."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import gradio as gr

from app.recordings import Followed
from app.render.follow import PICKER, following
from app.render.html import alert, note
from app.routes import MAX_COMPARED
from app.runs import Lane
from app.tabs.chat import Streams
from app.tabs.streaming import Frame, frames
from app.tabs.wiring import QUIET, Update, build_hidden, plain_html, viewed
from engine.errors import SpecScopeError

if TYPE_CHECKING:
    from app.tabs.history import History


def build_picker() -> gr.HTML:
    """Return the list of files; its event `followed` names the chosen one."""
    script = "SpecScopeApp.recordings(element, trigger, 'followed');"
    return plain_html("", html_template=PICKER, js_on_load=script, elem_id="follow-picker")


def build_wanted() -> gr.HTML:
    """Return the files that the address names, as hidden JSON; the page follows them."""
    return build_hidden("follow-wanted", "SpecScopeApp.wanted(props, watch, trigger, 'followed');")


class Following:
    """The components of followed files inside the history's, and their event handlers.

    Runs that another process executes take the way of the page's own runs: panes, deltas and
    documents of the viewer (`app.tabs.streaming`).
    """

    def __init__(self, history: History) -> None:
        self.history = history
        self.streams = Streams()
        script = "SpecScopeApp.following(element, trigger, watch, ['stopped', 'kept', 'followed']);"
        self.line = plain_html(js_on_load=script, elem_id="follow-line")
        with gr.Row(elem_id="follow-panes", elem_classes="specscope"):
            self.panes = [gr.HTML(visible=False, apply_default_css=False) for _ in range(MAX_COMPARED)]
        self.shown = [history.wanted, self.line, *self.panes]

    def connect(self) -> None:
        runs: dict[str, Any] = {**QUIET, "concurrency_limit": None, "trigger_mode": "multiple"}
        for part in (self.history.picker, self.history.wanted, self.line):
            begun = part.followed(self.streams.pointed(self.begin), None, self.history.opened, **runs)
            begun.then(self.history.analyse, self.history.viewer, self.history.analysis.shown, **QUIET)
        self.line.stopped(self.stop, None, None, **QUIET)
        self.line.kept(self.keep, None, self.line, **QUIET)

    async def begin(self, event: gr.EventData) -> AsyncIterator[Update]:
        """Follow files to their footers, or until they are stopped; then open their runs."""
        try:
            names = [str(name) for name in event.files][:MAX_COMPARED]
            followed = [self.history.service.follower.start(name) for name in names]
        except SpecScopeError as error:
            yield self.history.alerted(error)
            return
        yield self._begin(followed)
        revision = 0
        async for frame in frames([Lane([one.run]) for one in followed], first=0):
            revision += frame.draw
            yield self._show(frame, followed, revision)

    def stop(self, event: gr.EventData) -> None:
        self.history.service.follower.stop(str(event.file))

    def keep(self, event: gr.EventData) -> Update:
        """Import what a file holds that is no longer followed."""
        try:
            return {self.line: note(self.history.service.follower.keep(str(event.file)))}
        except SpecScopeError as error:
            return {self.line: alert(str(error))}

    def left(self) -> Update:
        return {
            self.history.wanted: "",
            self.line: "",
            **{pane: gr.update(visible=False) for pane in self.panes},
        }

    def _begin(self, followed: Sequence[Followed]) -> Update:
        history = self.history
        panes = {pane: gr.update(value="", visible=i < len(followed)) for i, pane in enumerate(self.panes)}
        return {
            history.listing: gr.update(visible=False),
            history.detail: gr.update(visible=True),
            history.heading: "",
            history.message: "",
            history.viewer: viewed((), live=True),
            **dict.fromkeys(history.analysis.cards, gr.update(visible=False)),
            self.line: following(followed),
            **panes,
        }

    def _show(self, frame: Frame, followed: Sequence[Followed], revision: int) -> Update:
        begun = [one.run.run_id for one in followed if one.run.run_id]
        if frame.last and begun:
            return {**self.history.show(begun), self.line: following(followed)}
        update: Update = {self.panes[i]: html for i, html in frame.panes.items()}
        if frame.draw:
            update[self.history.viewer] = viewed(begun, revision, live=not frame.last)
        return {**update, self.line: following(followed)}


def wanted_files(query: str) -> list[str]:
    """Return the files in the `follow=a,b` of an address."""
    return [unquote(name) for name in query.split(",") if name][:MAX_COMPARED]


def wanted(files: Sequence[str]) -> str:
    return json.dumps({"files": list(files)})
