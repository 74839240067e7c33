"""The history: stored runs, page by page; open, compare, delete, export, import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.render.history import opened, runs_table
from app.render.html import alert, note
from app.routes import COMPARED, find_traces, store_of
from app.tabs.viewer import build_viewer, viewed
from app.tabs.wiring import QUIET, Update
from engine.errors import SpecScopeError, UsageError

if TYPE_CHECKING:
    from app.service import Service
    from traces.store import Store

PAGE = 20
"""Runs on one page."""
Place = dict[str, Any]
"""Where the list stands: the `query` it answers, `offset` of the page, ids `selected`."""


class History:
    """The tab's components, and what happens to them."""

    def __init__(self, service: Service) -> None:
        self.service = service
        # Kept by the page, not by gr.State: the server remembers nothing of its visitors.
        self.place = gr.JSON(_place(), visible=False)
        with gr.Column(elem_id="history-list", elem_classes="app-plain") as self.listing:
            self._build_list()
        with gr.Column(elem_id="history-open", elem_classes="app-plain", visible=False) as self.detail:
            self.back = gr.Button("All runs", size="sm", min_width=0, elem_id="history-back")
            self.heading = gr.HTML(elem_id="history-heading")
            self.viewer = build_viewer("history-viewer")
        self.view = [self.search, self.place]
        """What tells which page is shown."""
        self.listed = [self.table, self.message, self.place, self.open, self.delete, self.confirm]
        """What `refresh` changes."""
        self._connect()

    def _build_list(self) -> None:
        with gr.Row(elem_id="history-bar", equal_height=True):
            self.search = gr.Textbox(
                "",
                show_label=False,
                label="Search",
                placeholder="Search prompts, answers, methods, ids",
                elem_id="history-search",
                container=False,
            )
            self.open = gr.Button(
                "Open selected", size="sm", interactive=False, min_width=0, elem_id="history-compare"
            )
            self.delete = gr.Button(
                "Delete", size="sm", interactive=False, min_width=0, elem_id="history-delete"
            )
            # The page's script sends the file to a route of its own: Gradio's uploads can be read by others.
            gr.Button("Import JSONL", size="sm", min_width=0, elem_id="history-import")
        with gr.Row(visible=False, elem_id="history-confirm", elem_classes="app-confirm") as self.confirm:
            self.question = gr.HTML()
            self.really = gr.Button(
                "Delete for good", variant="stop", size="sm", min_width=0, elem_id="delete-yes"
            )
            self.keep = gr.Button("Keep", size="sm", min_width=0, elem_id="delete-no")
        self.message = gr.HTML(elem_id="history-message")
        self.table = gr.HTML(
            js_on_load="SpecScopeApp.history(element, trigger, watch, ['picked', 'opened', 'compared', 'paged', 'imported']);",
            apply_default_css=False,
            elem_id="history-table",
        )

    def _connect(self) -> None:
        view, listed = self.view, self.listed
        shown = [self.listing, self.detail, self.heading, self.viewer, self.message]
        self.search.change(self.find, view, listed, trigger_mode="always_last", **QUIET)
        self.table.paged(self.turn_page, view, listed, **QUIET)
        picked = [self.place, self.open, self.delete, self.confirm]
        # Gradio's always_last would repeat an older event's data; the page's script waits for a pause instead.
        self.table.picked(self.pick, self.place, picked, trigger_mode="multiple", **QUIET)
        self.table.opened(self.open_one, None, shown, **QUIET)
        self.table.compared(self.open_group, None, shown, **QUIET)
        self.open.click(self.open_selected, self.place, shown, **QUIET)
        self.delete.click(self.ask_delete, self.place, [self.confirm, self.question], **QUIET)
        self.keep.click(lambda: gr.update(visible=False), None, self.confirm, **QUIET)
        self.really.click(self.delete_runs, view, listed, **QUIET)
        self.table.imported(self.show_imported, self.search, [*listed, self.search], **QUIET)
        self.back.click(self.list_again, view, [*listed, self.listing, self.detail, self.viewer], **QUIET)

    # -- the list -------------------------------------------------------------------------------------------------

    def refresh(self, query: str = "", place: Place | None = None, told: str = "") -> Update:
        """Return the list as it stands in the database."""
        offset, selected = _read(place)
        try:
            rows, total = self._store().runs(query=query, offset=offset, limit=PAGE)
        except SpecScopeError as error:
            return {self.message: alert(str(error))}
        if not rows and offset:
            return self.refresh(query, _place(query, max(0, offset - PAGE), selected), told)
        return {
            self.table: runs_table(rows, total, offset, PAGE, selected, query),
            self.message: told,
            self.place: _place(query, offset, selected),
            self.confirm: gr.update(visible=False),
            **self._actions(selected),
        }

    def find(self, query: str, place: Place) -> Any:
        """Show the first page of what matches."""
        # The box also changes when the program empties it; what is shown then is right already.
        return gr.skip() if query == place.get("query") else self.refresh(query)

    def turn_page(self, query: str, place: Place, event: gr.EventData) -> Update:
        """Show another page; what is selected stays selected."""
        return self.refresh(query, _place(query, max(0, int(event.offset)), _read(place)[1]))

    def pick(self, place: Place, event: gr.EventData) -> Update:
        """Take the boxes that are ticked; runs selected on other pages stay selected."""
        here, ticked = set(map(str, event.here)), [str(run) for run in event.ticked]
        selected = [run for run in _read(place)[1] if run not in here] + ticked
        return {
            self.place: {**place, "selected": selected},
            self.confirm: gr.update(visible=False),
            **self._actions(selected),
        }

    def _actions(self, selected: Sequence[str]) -> Update:
        n = len(selected)
        name = f"Compare {n}" if n > 1 else "Open selected"
        return {
            self.open: gr.update(interactive=0 < n <= COMPARED, value=name),
            self.delete: gr.update(interactive=n > 0, value=f"Delete {n}" if n > 1 else "Delete"),
        }

    def list_again(self, query: str, place: Place) -> Update:
        """Go back from an open run."""
        return {
            **self.refresh(query, place),
            self.listing: gr.update(visible=True),
            self.detail: gr.update(visible=False),
            self.viewer: viewed(()),
        }

    # -- open -----------------------------------------------------------------------------------------------------

    def open_one(self, event: gr.EventData) -> Update:
        """Open the run of a row."""
        return self.show([str(event.run)])

    def open_group(self, event: gr.EventData) -> Update:
        """Open the run of a row with those it was compared with."""
        try:
            return self.show(self._store().group(str(event.run))[:COMPARED])
        except SpecScopeError as error:
            return {self.message: alert(str(error))}

    def open_selected(self, place: Place) -> Update:
        """Open what is ticked."""
        return self.show(_read(place)[1])

    def show(self, runs: Sequence[str]) -> Update:
        """Open runs in the viewer."""
        try:
            traces = find_traces(self.service, ",".join(runs))
        except SpecScopeError as error:
            return {
                self.message: alert(str(error)),
                self.listing: gr.update(visible=True),
                self.detail: gr.update(visible=False),
            }
        return {
            self.listing: gr.update(visible=False),
            self.detail: gr.update(visible=True),
            self.heading: opened(traces),
            self.viewer: viewed([trace.header.run_id for trace in traces]),
            self.message: "",
        }

    # -- change ---------------------------------------------------------------------------------------------------

    def ask_delete(self, place: Place) -> Update:
        """Ask before anything is deleted."""
        n = len(_read(place)[1])
        what = f"these {n} runs" if n > 1 else "this run"
        return {
            self.confirm: gr.update(visible=n > 0),
            self.question: f"<p>Delete {what} and their traces? This cannot be undone.</p>",
        }

    def delete_runs(self, query: str, place: Place) -> Update:
        """Delete the selected runs."""
        offset, selected = _read(place)
        try:
            gone = self._store().delete(selected)
        except SpecScopeError as error:
            return self.refresh(query, place, alert(str(error)))
        told = note(f"{gone} run{'s' if gone != 1 else ''} deleted.")
        return self.refresh(query, _place(query, offset), told)

    def show_imported(self, query: str, event: gr.EventData) -> Update:
        """Say how an import ended; the page's script has sent the file."""
        if event.error:
            return self.refresh(query, told=alert(str(event.error)))
        return self.refresh("", told=note(f"Run {event.run} was imported.")) | {self.search: ""}

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
    """Return the runs that a permalink names: `?run=a,b`.

    Raises:
        UsageError: It names too many.
    """
    runs = [name for name in query.split(",") if name]
    if len(runs) > COMPARED:
        raise UsageError(f"the link names {len(runs)} runs; at most {COMPARED} can be compared")
    return runs
