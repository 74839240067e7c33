"""The page: a heading and six tabs. Handlers take and return plain values, never files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from specscope.app.jobs.service import Service
from specscope.app.pairs import TOY
from specscope.app.ray import Ray
from specscope.app.tabs.about import build_about
from specscope.app.tabs.advise import build_advise
from specscope.app.tabs.follow import wanted, wanted_files
from specscope.app.tabs.history import History, wanted_runs
from specscope.app.tabs.lab import build_lab
from specscope.app.tabs.load import build_load
from specscope.app.tabs.papers import build_papers
from specscope.app.tabs.playground import Playground
from specscope.app.tabs.winners import build_map
from specscope.app.tabs.wiring import QUIET, Update, build_hidden
from specscope.app.web.guard import report_failure
from specscope.engine.errors import UsageError

TITLE = """
<header class="app-head">
  <h1>SpecScope</h1>
  <span>Speculative decoding, side by side: who drafts, who verifies, who waits.</span>
  <button type="button" class="ss-button app-theme" aria-label="Light or dark" title="Light or dark">◐</button>
</header>
"""
MALFORMED = "this call has another form than the page's own; reload the page"
CHANGED = "a list of choices has just changed with another control; look at your choice and press again"
"""Of a press that is faster than the answer to the choice before, such as a cluster's pairs."""
TABS = {
    "history": "history",
    "lab": "lab-tab",
    "load": "load-tab",
    "advise": "advise-tab",
    "papers": "papers-tab",
    "about": "about",
}
"""Ids of the tabs by their name in an address; the Playground's address has none."""
MAX_DEPTH = 16
"""Most levels of lists and objects in a handler's input. The page itself sends four."""
MAX_UNREAD = 32
"""Most calls of one session that are running or whose answer is unread. A page has one or two."""
MAX_SESSIONS = 1000
"""Most sessions that the server remembers; it forgets the one that was idle longest."""


class Page(gr.Blocks):
    """Gradio blocks whose handlers get no files and whose failures are one line.

    Gradio copies every file named in an input or output into its cache and serves the copy. This
    page needs no files: traces are imported by `routes.import_run`.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Gradio checks paths only in an app that it launched; this one is mounted.
        self.has_launched = True
        self.state_session_capacity = MAX_SESSIONS

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **more: Any) -> list[Any]:
        """Return a handler's arguments; refuse files, deep nesting, and foreign forms."""
        check_plain(inputs)
        try:
            values = await super().preprocess_data(block_fn, inputs, *args, **more)
        except Exception as error:  # noqa: BLE001 - a component got what its page never sends
            changed = isinstance(error, gr.Error) and "list of choices" in str(error)
            raise gr.Error(CHANGED if changed else MALFORMED, print_exception=False) from None
        return [_kept(block, value) for block, value in zip(block_fn.inputs, values, strict=True)]

    async def process_api(self, *args: Any, **more: Any) -> dict[str, Any]:
        """Return a handler's answer; an error reveals nothing about the server."""
        try:
            self._check_answers_read(more.get("session_hash"))
            check_unicode(getattr(more.get("event_data"), "_data", None))
            return await super().process_api(*args, **more)
        except gr.Error as error:
            error.print_exception = False  # its message is for the page
            raise
        except Exception as error:  # noqa: BLE001 - Gradio would send its message to the page
            report_failure("a call of the page", error)
            raise gr.Error("the server could not handle this", print_exception=False) from None
        finally:
            # Gradio stores every component for deep links, 300 kB per session. This page has none.
            if state := more.get("state"):
                state.config_values.clear()

    def handle_streaming_diffs(
        self,
        block_fn: Any,
        data: list[Any],
        session_hash: str | None,
        run: str | None,
        *args: Any,
        **more: Any,
    ) -> list[Any]:
        """Return whole values in place of differences to the values before.

        The browser applies a difference to an update that it has perhaps not shown yet; what the
        new update leaves out is then lost.
        """
        before = list(self._sent(session_hash, run))
        sent = super().handle_streaming_diffs(block_fn, data, session_hash, run, *args, **more)
        after = self._sent(session_hash, run)
        if not before or not after:  # the first values, and the last ones, are whole
            return sent
        return [[] if old == new else [["replace", [], new]] for old, new in zip(before, after, strict=True)]

    def _sent(self, session_hash: str | None, run: str | None) -> list[Any]:
        return self.pending_diff_streams.get(session_hash, {}).get(run, [])

    def _check_answers_read(self, session: str | None) -> None:
        """Raise gr.Error if a session has too many unread answers, which the server must keep."""
        if len(self._queue.pending_event_ids_session.get(session or "", ())) > MAX_UNREAD:
            raise gr.Error("too many answers are unread; reload the page", print_exception=False)


def _kept(block: Any, value: Any) -> Any:
    if not isinstance(block, gr.JSON):
        return value
    if not isinstance(value, dict | None):
        raise gr.Error(MALFORMED, print_exception=False)
    return value or {}


def check_unicode(value: Any) -> None:
    """Raise gr.Error for a text with half of a character, which no answer could hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        message = "a text holds half of a character, perhaps of an emoji; remove it"
        raise gr.Error(message, print_exception=False) from None


def check_plain(value: Any) -> None:
    """Raise gr.Error for a value that names a file, is nested too deeply, or is not Unicode."""
    pending = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise gr.Error("the request is nested too deeply", print_exception=False)
        if isinstance(item, dict):
            if "path" in item:
                raise gr.Error("this page takes no files", print_exception=False)
            pending += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, list):
            pending += [(part, depth + 1) for part in item]
    check_unicode(value)


def build_page(service: Service, pair: str | None = TOY, ray: Ray | None = None) -> Page:
    with Page(title="SpecScope", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(TITLE, js_on_load="SpecScopeApp.head(element);", apply_default_css=False, elem_id="head")
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("Playground", id="playground"):
                playground = Playground(service, pair, ray)
            with gr.Tab("History", id="history") as history_tab:
                history = History(service)
            with gr.Tab("Lab", id="lab-tab") as lab_tab:
                lab = build_lab(service, pair)
                build_map(lab_tab, service)
            with gr.Tab("Load", id="load-tab") as load_tab:
                load = build_load(service)
            with gr.Tab("Advise", id="advise-tab") as advise_tab:
                advise = build_advise(service)
            with gr.Tab("Papers", id="papers-tab") as papers:
                build_papers(papers)
            with gr.Tab("About", id="about") as about:
                build_about(about)
        playground.connect_load(page)
        # A search that is typed while the list is on its way may be answered first: look again when
        # the page has taken the list, a moment after its arrival.
        listed = history_tab.select(history.refresh, history.view, history.listed, **QUIET)
        taken = listed.then(None, js="() => new Promise((go) => setTimeout(go, 100))", **QUIET)
        taken.then(history.find, history.view, history.listed, **QUIET)
        for tab, one in ((lab_tab, lab), (load_tab, load), (advise_tab, advise)):
            tab.select(one.first, one.name, one.result, **QUIET)
        opened = [tabs, *history.opened]

        def follow_link(request: gr.Request) -> Any:
            """Open the runs or the tab of the address."""
            query = request.query_params
            try:
                runs = wanted_runs(query.get("run", ""))
            except UsageError:
                runs = []
            if runs:
                return {tabs: gr.update(selected="history"), **history.show(runs)}
            if files := wanted_files(query.get("follow", "")):
                return {tabs: gr.update(selected="history"), history.wanted: wanted(files)}
            tab = TABS.get(query.get("tab", ""))
            return {tabs: gr.update(selected=tab)} if tab else gr.skip()

        linked = page.load(follow_link, None, opened, **QUIET)
        linked.then(history.analyse, history.viewer, history.analysis.shown, **QUIET)
        router = build_hidden("router", "SpecScopeAddress.follow(trigger, 'moved');")

        async def move(event: gr.EventData) -> AsyncIterator[Update]:
            """Select the tab of an earlier address; in the Playground, show its race."""
            opens = event.run or event.follow
            tab = TABS["history"] if opens else TABS.get(str(event.tab), "playground")
            yield {tabs: gr.update(selected=tab)}
            if tab == "playground":
                async for update in playground.restore(event.chat, event.noted, moved=True):
                    yield update

        async def place(event: gr.EventData) -> AsyncIterator[Update]:
            """Show in the History what it showed at an earlier address; files are followed anew."""
            if runs := wanted_runs(str(event.run)):
                yield history.show(runs)
            elif files := wanted_files(str(event.follow)):
                yield {history.wanted: wanted(files)}
            else:
                at_list = TABS.get(str(event.tab)) == "history"
                yield history.list_again("", {}) if at_list else {history.wanted: gr.skip()}

        every: dict[str, Any] = {"trigger_mode": "multiple", **QUIET}
        moved, placed = playground.streams, history.streams
        router.moved(moved.pointed(move), None, [tabs, *playground.changed], **moved.in_order, **every)
        places = list(dict.fromkeys([*history.opened, *history.left]))
        opened_again = router.moved(placed.pointed(place), None, places, **placed.in_order, **every)
        opened_again.then(history.analyse, history.viewer, history.analysis.shown, **QUIET)
    page.queue(max_size=64)
    return page
