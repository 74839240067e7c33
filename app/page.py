"""The page: a heading and three tabs. Its handlers take and return plain values, never files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from app.guard import report_failure
from app.tabs.about import build_about
from app.tabs.history import History, wanted_runs
from app.tabs.playground import Playground
from app.tabs.wiring import QUIET
from engine.errors import UsageError

if TYPE_CHECKING:
    from app.service import Service

TITLE = """
<header class="app-head">
  <h1>SpecScope</h1>
  <span>Speculative decoding, side by side: who drafts, who verifies, who waits.</span>
  <button type="button" class="ss-button app-theme" aria-label="Light or dark" title="Light or dark">◐</button>
</header>
"""


DEEPEST = 16
"""Levels of lists and objects in a value that a handler gets. The page itself sends four."""


UNREAD = 32
"""Calls of one visit that may be under way or answered but unread. A page has one or two."""
VISITS = 1000
"""Visits that the server remembers; the one that was silent longest is forgotten first."""


class Page(gr.Blocks):
    """Blocks whose handlers get no files, and whose failures are one line.

    Gradio copies every file that an input or an output names into its cache, and serves the copies. This page needs
    none of that: a trace is imported by a route of its own.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Gradio checks paths only in an app that it launched itself; a mounted app would go unchecked.
        self.has_launched = True
        self.state_session_capacity = VISITS

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **more: Any) -> list[Any]:
        """Return what a handler gets.

        Raises:
            Error: A value names a file, or nests too deeply.
        """
        check_plain(inputs)
        return await super().preprocess_data(block_fn, inputs, *args, **more)

    async def process_api(self, *args: Any, **more: Any) -> dict[str, Any]:
        """Return what a handler answers.

        Raises:
            Error: The call failed; the message holds nothing of the server.
        """
        try:
            self._check_answers_read(more.get("session_hash"))
            return await super().process_api(*args, **more)
        except gr.Error as error:
            error.print_exception = False  # its message is for the page
            raise
        except Exception as error:  # noqa: BLE001 - Gradio would print a traceback and send the message to the page
            report_failure("a call of the page", error)
            raise gr.Error("the server could not handle this", print_exception=False) from None
        finally:
            # Gradio keeps every component's description for deep links. This page has none; a visit keeps 23 kB without them.
            if state := more.get("state"):
                state.config_values.clear()

    def _check_answers_read(self, session: str | None) -> None:
        """Raise gr.Error when a visit asks on and on without reading the answers, which are kept for it."""
        if len(self._queue.pending_event_ids_session.get(session or "", ())) > UNREAD:
            raise gr.Error("too many answers were not read yet", print_exception=False)


def check_plain(value: Any) -> None:
    """Raise gr.Error for a value that names a file or nests too deeply."""
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > DEEPEST:
            raise gr.Error("the request nests too deeply", print_exception=False)
        if isinstance(item, dict):
            if "path" in item:
                raise gr.Error("this page takes no files", print_exception=False)
            waiting += [(part, depth + 1) for part in item.values()]
        elif isinstance(item, list):
            waiting += [(part, depth + 1) for part in item]


def build_page(service: Service) -> Page:
    """Return the page over a service."""
    with Page(title="SpecScope", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(TITLE, js_on_load="SpecScopeApp.head(element);", apply_default_css=False, elem_id="head")
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("Playground", id="playground"):
                Playground(service)
            with gr.Tab("History", id="history") as history_tab:
                history = History(service)
            with gr.Tab("About", id="about"):
                build_about()
        history_tab.select(history.refresh, history.view, history.listed, **QUIET)
        opened = [tabs, history.listing, history.detail, history.heading, history.viewer, history.message]

        def follow_link(request: gr.Request) -> Any:
            """Open what the address names."""
            try:
                runs = wanted_runs(request.query_params.get("run", ""))
            except UsageError:
                runs = []
            return {tabs: gr.update(selected="history"), **history.show(runs)} if runs else gr.skip()

        page.load(follow_link, None, opened, **QUIET)
    page.queue(max_size=64)
    return page
