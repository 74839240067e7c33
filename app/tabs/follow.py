"""Files that other processes write, live in the History tab: chosen there, or by the address."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from urllib.parse import unquote

import gradio as gr

from specscope.app.jobs.recordings import Followed
from specscope.app.jobs.runs import Lane
from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import MAX_COMPARED
from specscope.app.render.follow import PICKER, following
from specscope.app.render.html import alert, note
from specscope.app.tabs.streaming import Frame, frames
from specscope.app.tabs.wiring import QUIET, Update, build_hidden, plain_html
from specscope.engine.errors import SpecScopeError


def build_picker() -> gr.HTML:
    """Return the list of files; its event `followed` names the chosen one."""
    script = "SpecScopeApp.recordings(element, trigger, 'followed');"
    return plain_html("", html_template=PICKER, js_on_load=script, elem_id="follow-picker")


def build_wanted() -> gr.HTML:
    """Return the files that the address names, as hidden JSON; the page follows them."""
    return build_hidden("follow-wanted", "SpecScopeApp.wanted(props, watch, trigger, 'followed');")


def wanted_files(query: str) -> list[str]:
    """Return the files in the `follow=a,b` of an address."""
    return [unquote(name) for name in query.split(",") if name][:MAX_COMPARED]


def wanted(files: Sequence[str]) -> str:
    """Return the hidden JSON that asks the page to follow files, each time another one."""
    return json.dumps({"files": list(files), "asked": time.monotonic_ns()})


class Following:
    """The lines and panes of followed files.

    Runs that another process executes take the way of the page's own runs: panes, deltas and
    documents of the viewer (`specscope.app.tabs.streaming`).
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        script = "SpecScopeApp.following(element, trigger, watch, ['stopped', 'kept', 'followed', 'chosen']);"
        self.line = plain_html(js_on_load=script, elem_id="follow-line")
        with gr.Row(elem_id="follow-panes", elem_classes="specscope"):
            self.panes = [gr.HTML(visible=False, apply_default_css=False) for _ in range(MAX_COMPARED)]
        self.shown = [self.line, *self.panes]
        self.line.stopped(self.stop, None, None, **QUIET)
        self.line.chosen(self.choose, None, None, **QUIET)
        self.line.kept(self.keep, None, self.line, **QUIET)

    def start(self, names: Sequence[object]) -> list[Followed]:
        return [self.service.follower.start(str(name)) for name in names[:MAX_COMPARED]]

    def begun(self, followed: Sequence[Followed]) -> Update:
        panes = {pane: gr.update(value="", visible=i < len(followed)) for i, pane in enumerate(self.panes)}
        return {self.line: following(followed), **panes}

    async def updates(self, followed: Sequence[Followed]) -> AsyncIterator[tuple[Frame, Update]]:
        """Yield frames and what changed in lines and panes, until no file is followed any more."""
        async for frame in frames([Lane([one.run]) for one in followed], own=False):
            panes = {self.panes[i]: html for i, html in frame.panes.items()}
            yield frame, {**panes, self.line: following(followed)}

    def left(self) -> Update:
        return {self.line: "", **{pane: gr.update(visible=False) for pane in self.panes}}

    def stop(self, event: gr.EventData) -> None:
        self.service.follower.stop(str(event.file))

    def choose(self, event: gr.EventData) -> None:
        self.service.follower.show(str(event.file), str(event.run))

    def keep(self, event: gr.EventData) -> Update:
        """Import what a file holds that is no longer followed."""
        try:
            return {self.line: note(self.service.follower.keep(str(event.file)))}
        except SpecScopeError as error:
            return {self.line: alert(str(error))}
