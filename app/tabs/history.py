"""The History tab: list, search, open, compare, delete, export, import and follow runs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import gradio as gr

from specscope.app.jobs.long import MOST_ANALYSED, long_runs
from specscope.app.jobs.service import Service
from specscope.app.jobs.stored import MAX_COMPARED, find_passes, find_traces, median_of, store_of
from specscope.app.render.addresses import SET
from specscope.app.render.history import folded_set, opened, opened_set, runs_table
from specscope.app.render.html import alert, note
from specscope.app.shipped.beside import keep
from specscope.app.tabs.analysis import Analysis
from specscope.app.tabs.chat import Streams
from specscope.app.tabs.follow import Following, build_picker, build_wanted
from specscope.app.tabs.requests import MOST_PASSES
from specscope.app.tabs.wiring import QUIET, SMALL, Update, build_viewer, plain_html, viewed
from specscope.engine.errors import SpecScopeError, UsageError
from specscope.engine.trace.events import Header
from specscope.traces.database.store import Store
from specscope.traces.judge.race import grouped
from specscope.traces.sets.compared import sets_of
from specscope.traces.sets.members import members_of

PAGE_SIZE = 20
EXAMPLE = "Example: transformers' own assisted generation beside speculative decoding and PEARL"
Place = dict[str, Any]
"""State of the list: its `query`, the `offset` of the page, the `selected` run ids."""


class History:
    """The tab's components and their event handlers."""

    def __init__(self, service: Service) -> None:
        self.service = service
        # Stored by the page, not in gr.State: the server keeps no state of its visitors.
        self.place = gr.JSON(_place(), visible=False)
        self.wanted = build_wanted()
        with gr.Column(elem_id="history-list", elem_classes="app-plain") as self.listing:
            self._build_list()
        with gr.Column(elem_id="history-open", elem_classes="app-plain", visible=False) as self.detail:
            self.back = gr.Button("All runs", elem_id="history-back", **SMALL)
            script = "SpecScopeApp.heading(element, watch, trigger, ['removed']);"
            self.heading = plain_html(elem_id="history-heading", js_on_load=script)
            self.following = Following(service)
            self.viewer = build_viewer("history-viewer")
            self.analysis = Analysis(service)
        self.view = [self.search, self.place]
        """Inputs that determine the page of the list."""
        self.acts = [self.open, self.as_set, self.delete]
        self.listed = [self.table, self.message, self.place, *self.acts, self.confirm]
        opened = [self.listing, self.detail, self.heading, self.viewer, self.message]
        live = [self.wanted, *self.following.shown]
        self.opened = [*opened, *live, *self.analysis.shown]
        self.left = [*self.listed, self.listing, self.detail, self.viewer, self.heading, *live]
        self.streams = Streams("history")
        """Of followed files."""
        self._connect()

    def _build_list(self) -> None:
        hint = "Search words, ids, models, races; tokens:>50, temperature:0, speedup:>1.5, load:busy"
        bare: dict[str, Any] = {"label": "Search", "show_label": False, "container": False}
        with gr.Row(elem_id="history-bar", equal_height=True):
            self.search = gr.Textbox("", placeholder=hint, elem_id="history-search", **bare)
            self.open = gr.Button("Open selected", interactive=False, elem_id="history-compare", **SMALL)
            self.as_set = gr.Button("As one set", interactive=False, elem_id="history-set", **SMALL)
            self.delete = gr.Button("Delete", interactive=False, elem_id="history-delete", **SMALL)
            # `app.js` posts the file to /specscope/import: others could read Gradio's uploads.
            gr.Button("Import", elem_id="history-import", **SMALL)
            self.picker = build_picker()
        with gr.Accordion("Paste what an engine printed", open=False, elem_classes="app-fold"):
            what = (
                "Lines of the log of llama.cpp, vLLM or SGLang, the text of /metrics, a response or a stream: "
                "it is stored as a run, with its drafts by place and over time."
            )
            pasted: dict[str, Any] = {"label": "Text", "info": what, "elem_id": "history-pasted"}
            gr.Textbox("", lines=4, max_lines=12, **pasted)
            gr.Button("Import the text", elem_id="history-paste", **SMALL)
        with gr.Accordion("Follow what is being written", open=False, elem_classes="app-fold"):
            source = (
                "Path of a recording, of the log of llama.cpp's server, vLLM or SGLang, or of a folder of "
                "recordings; or the address of a server's /metrics, as http://127.0.0.1:8080/metrics. Its run grows live."
            )
            named: dict[str, Any] = {"label": "Path or address", "info": source, "elem_id": "follow-source"}
            self.source = gr.Textbox("", max_lines=1, **named)
            self.begin = gr.Button("Follow", elem_id="follow-begin", **SMALL)
        with gr.Row(visible=False, elem_id="history-confirm", elem_classes="app-confirm") as self.confirm:
            self.question = gr.HTML()
            self.really = gr.Button("Delete for good", variant="stop", elem_id="delete-yes", **SMALL)
            self.keep = gr.Button("Keep", elem_id="delete-no", **SMALL)
        self.message = gr.HTML(elem_id="history-message")
        self.example = gr.Button(EXAMPLE, elem_id="history-example", **SMALL)
        events = "['picked', 'opened', 'compared', 'grouped', 'paged', 'imported']"
        script = f"SpecScopeApp.history(element, trigger, watch, {events});"
        self.table = plain_html(js_on_load=script, elem_id="history-table")

    def _connect(self) -> None:
        view, listed = self.view, self.listed
        shown = self.opened
        self.search.change(self.find, view, listed, trigger_mode="always_last", **QUIET)
        self.table.paged(self.turn_page, view, listed, **QUIET)
        picked = [self.place, *self.acts, self.confirm]
        # always_last would repeat an older event's data; `app.js` waits for a pause instead.
        self.table.picked(self.pick, self.place, picked, trigger_mode="multiple", **QUIET)
        for opening in (
            self.table.opened(self.open_one, None, shown, **QUIET),
            self.table.compared(self.open_group, None, shown, **QUIET),
            self.open.click(self.open_selected, self.place, shown, **QUIET),
            self.as_set.click(self.open_as_set, self.place, shown, **QUIET),
            self.table.grouped(self.open_grouped, None, shown, **QUIET),
            self.example.click(self.open_example, None, shown, **QUIET),
        ):
            opening.then(self.analyse, self.viewer, self.analysis.shown, **QUIET)
        self.delete.click(self.ask_delete, self.place, [self.confirm, self.question], **QUIET)
        asked = list(dict.fromkeys([*self.left, self.question]))
        self.heading.removed(self.ask_delete_set, view, asked, **QUIET)
        self.keep.click(lambda: gr.update(visible=False), None, self.confirm, **QUIET)
        self.really.click(self.delete_runs, view, listed, **QUIET)
        imported = list(dict.fromkeys([*listed, self.search, *shown]))
        self.table.imported(self.show_imported, self.search, imported, **QUIET)
        self.back.click(self.streams.handler(self.leave), view, self.left, **self.streams.in_order, **QUIET)
        runs: dict[str, Any] = {**QUIET, **self.streams.in_order, "trigger_mode": "multiple"}
        for part in (self.picker, self.wanted, self.following.line):
            followed = part.followed(self.streams.pointed(self.follow), None, shown, **runs)
            followed.then(self.analyse, self.viewer, self.analysis.shown, **QUIET)
        for part in (self.begin.click, self.source.submit):
            followed = part(self.streams.handler(self.follow_typed), self.source, shown, **runs)
            followed.then(self.analyse, self.viewer, self.analysis.shown, **QUIET)

    # -- the list

    def refresh(self, query: str = "", place: Place | None = None, message: str = "") -> Update:
        offset, selected = _read(place)
        try:
            rows, total = self._store().runs(query=query, offset=offset, limit=PAGE_SIZE)
        except SpecScopeError as error:
            return {self.message: alert(error)}
        if not rows and offset:
            return self.refresh(query, _place(query, max(0, offset - PAGE_SIZE), selected), message)
        return {
            self.table: runs_table(rows, total, offset, PAGE_SIZE, selected, query),
            self.message: message,
            self.place: _place(query, offset, selected),
            self.confirm: gr.update(visible=False),
            **self._actions(selected),
        }

    def find(self, query: str, place: Place) -> Any:
        # The box also changes when `show_imported` empties it; the list is already right then.
        return gr.skip() if query == place.get("query") else self.refresh(query)

    def turn_page(self, query: str, place: Place, event: gr.EventData) -> Update:
        return self.refresh(query, _place(query, max(0, int(event.offset)), _read(place)[1]))

    def pick(self, place: Place, event: gr.EventData) -> Update:
        """Select the ticked runs of this page, and keep the selection on other pages."""
        listed, ticked = set(map(str, event.listed)), [str(run) for run in event.ticked]
        selected = [run for run in _read(place)[1] if run not in listed] + ticked
        return {
            self.place: {**place, "selected": selected},
            self.confirm: gr.update(visible=False),
            **self._actions(selected),
        }

    def _actions(self, selected: Sequence[str]) -> Update:
        n = len(selected)
        name = f"Compare {n}" if n > 1 else "Open selected"
        return {
            self.open: gr.update(interactive=0 < n <= MAX_COMPARED, value=name),
            self.as_set: gr.update(interactive=n > 0),
            self.delete: gr.update(interactive=n > 0, value=f"Delete {n}" if n > 1 else "Delete"),
        }

    async def leave(self, query: str, place: Place) -> AsyncIterator[Update]:
        yield self.list_again(query, place)

    def list_again(self, query: str, place: Place) -> Update:
        return {
            **self.refresh(query, place),
            **self.following.left(),
            self.wanted: "",
            self.listing: gr.update(visible=True),
            self.detail: gr.update(visible=False),
            self.viewer: viewed(()),
            self.heading: "",
        }

    # -- open

    def open_one(self, event: gr.EventData) -> Update:
        return self.show([str(event.run)])

    def open_group(self, event: gr.EventData) -> Update:
        try:
            store = self._store()
            runs = store.group(str(event.run))[: MAX_COMPARED * MOST_PASSES]
            groups = grouped([store.header(run) for run in runs])
            return self.show(["~".join(h.run_id for h in group) for group in groups][:MAX_COMPARED])
        except SpecScopeError as error:
            return {self.message: alert(error)}

    def open_selected(self, place: Place) -> Update:
        return self.show(_read(place)[1])

    def open_as_set(self, place: Place) -> Update:
        return self.show_set(_read(place)[1])

    def open_grouped(self, event: gr.EventData) -> Update:
        return self.show_set([str(event.run)])

    def open_example(self) -> Update:
        """Store the runs of the example that are not stored, and open all."""
        try:
            return self.show(keep(self._store()))
        except SpecScopeError as error:
            return {self.message: alert(error)}

    def show(self, runs: Sequence[str]) -> Update:
        """Open runs in the viewer; of long runs `analyse` shows the analysis later."""
        if runs and runs[0].startswith(SET):
            return self.show_set([runs[0].removeprefix(SET), *runs[1:]])
        try:
            if long_runs(self.service.store, [run.split("~")[0] for run in runs]):
                headers = [self._store().header(run.split("~")[0]) for run in runs]
                return self._opened(headers, runs) | dict.fromkeys(
                    self.analysis.cards, gr.update(visible=False)
                )
            passes = find_passes(self.service, ",".join(runs))
        except SpecScopeError as error:
            return self._refused(error)
        traces, passes = median_of(passes)
        names = ["~".join(t.header.run_id for t in group) for group in passes]
        shown = self._opened([t.header for t in traces], names)
        return shown | {self.heading: shown[self.heading] + folded_set(traces)} | self.analysis.show(traces)

    def show_set(self, names: Sequence[str], message: str = "") -> Update:
        """Show the figures of runs, or of the requests of a file, as one set."""
        try:
            sets = sets_of([list(members_of(self._store().outlines(names)))])
        except SpecScopeError as error:
            return self._refused(error)
        hidden = dict.fromkeys(self.analysis.cards, gr.update(visible=False))
        heading = opened_set(names, sets, message)
        return {**self._opened([], ()), **hidden, self.heading: heading}

    def _refused(self, error: SpecScopeError) -> Update:
        return {
            self.message: alert(error),
            self.listing: gr.update(visible=True),
            self.detail: gr.update(visible=False),
        }

    def _opened(self, headers: Sequence[Header], names: Sequence[str]) -> Update:
        return {
            **self.following.left(),
            self.wanted: "",
            self.listing: gr.update(visible=False),
            self.detail: gr.update(visible=True),
            self.heading: opened(headers, names) if headers else "",
            self.viewer: viewed(names),
            self.message: "",
        }

    def follow(self, event: gr.EventData) -> AsyncIterator[Update]:
        """Follow what the page names."""
        return self._follow([str(name) for name in event.files])

    async def follow_typed(self, text: str) -> AsyncIterator[Update]:
        """Follow a path or an address."""
        try:
            name = self.service.follower.recordings.add(text)
        except SpecScopeError as error:
            yield {self.message: alert(error)}
            return
        async for update in self._follow([name]):
            yield update

    async def _follow(self, names: Sequence[str]) -> AsyncIterator[Update]:
        """Follow files to their footers, or until they are stopped; then open their runs."""
        empty = {
            self.listing: gr.update(visible=False),
            self.detail: gr.update(visible=True),
            **dict.fromkeys([self.heading, self.message], ""),
            **dict.fromkeys(self.analysis.cards, gr.update(visible=False)),
            self.viewer: viewed((), live=True),
        }
        try:
            followed = self.following.start(names)
        except SpecScopeError as error:  # not above the list, which may be read again just now
            yield {**empty, **self.following.left(), self.following.line: alert(error)}
            return
        yield {**empty, **self.following.begun(followed)}
        revision = 0
        async for frame, update in self.following.updates(followed):
            runs = [one.run.run_id for one in followed if one.run.run_id]
            revision += frame.draw
            if frame.last and runs:
                yield {**self.show(runs), self.following.line: update[self.following.line]}
            elif frame.draw:
                yield {**update, self.viewer: viewed(runs, revision, live=True)}
            else:
                yield update

    def analyse(self, shown: str) -> Any:
        """Show the analysis of long runs, which takes seconds; not of very long ones."""
        try:
            runs = [str(run) for run in json.loads(shown)["runs"]]
            sizes = long_runs(self.service.store, [run.split("~")[0] for run in runs])
            if not sizes or sum(size.spans for size in sizes) > MOST_ANALYSED:
                return gr.skip()
            return self.analysis.show(find_traces(self.service, ",".join(runs)))
        except (SpecScopeError, ValueError, KeyError, TypeError):
            return gr.skip()  # the viewer shows what is wrong

    # -- change

    def ask_delete(self, place: Place) -> Update:
        n = len(_read(place)[1])
        runs = f"these {n} runs" if n > 1 else "this run"
        return {
            self.confirm: gr.update(visible=n > 0),
            self.question: f"<p>Delete {runs} and their traces? This cannot be undone.</p>",
        }

    def ask_delete_set(self, query: str, place: Place, event: gr.EventData) -> Update:
        """Show the list with the runs of a set selected, and ask whether to delete them."""
        try:
            selected = self._store().named(str(event.runs).split(","))
        except SpecScopeError as error:
            return self.list_again(query, place) | {self.message: alert(error)}
        place = _place(query, selected=selected)
        return self.list_again(query, place) | self.ask_delete(place)

    def delete_runs(self, query: str, place: Place) -> Update:
        offset, selected = _read(place)
        try:
            count = self._store().delete(selected)
        except SpecScopeError as error:
            return self.refresh(query, place, alert(error))
        message = note(f"{count} run{'s' if count != 1 else ''} deleted.")
        return self.refresh(query, _place(query, offset), message)

    def show_imported(self, query: str, event: gr.EventData) -> Update:
        """Show the result of an import, after `app.js` has posted the file."""
        if event.error:
            return self.refresh(query, message=alert(str(event.error)))
        message, listed = f"Run {event.run} was imported.", {self.search: ""}
        if event.set:
            return self.refresh("") | self.show_set([str(event.set)], message) | listed
        return self.refresh("", message=note(message)) | listed

    def _store(self) -> Store:
        return store_of(self.service)


def _place(query: str = "", offset: int = 0, selected: Sequence[str] = ()) -> Place:
    return {"query": query, "offset": offset, "selected": list(selected)}


def _read(place: Place | None) -> tuple[int, list[str]]:
    place = place if isinstance(place, dict) else {}
    offset, selected = place.get("offset"), place.get("selected")
    return (
        offset if isinstance(offset, int) and 0 <= offset < 2**31 else 0,
        [str(run) for run in selected] if isinstance(selected, list) else [],
    )


def wanted_runs(query: str) -> list[str]:
    """Return the runs in the `run=a,b` of a permalink; those of a set begin with `SET`."""
    runs = [name for name in query.split(",") if name]
    if len(runs) > MAX_COMPARED and not runs[0].startswith(SET):
        raise UsageError(f"the link names {len(runs)} runs; at most {MAX_COMPARED} can be compared")
    return runs
