"""A race after a reload: from the service's memory while it runs, else from the database."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import gradio as gr

from app.render.history import name_of
from app.routes import MAX_COMPARED, find_traces
from app.runs import lanes_of
from app.windows import long_runs
from traces.race import grouped

if TYPE_CHECKING:
    from app.runs import Lane
    from app.service import Service
    from app.tabs.chat import Chat
    from engine.cluster.prompts import Prompt

MOST_PAGES = 1000
"""Open pages that are remembered."""
LOOK = 0.2
"""Seconds between two looks whether the page shows something else."""


def running(service: Service, chat: Chat) -> tuple[Chat, list[Lane]]:
    """Return a chat with the lanes of its race that the service has in memory; none for another."""
    lanes = lanes_of(service.race(chat.race))
    if lanes and not chat.prompt:  # a race that another page has started
        chat = chat.asked(_message(lanes[0].request.prompt))
    return chat.started(
        tuple(run.ticket for lane in lanes for run in lane.runs), chat.race or _race(lanes)
    ), lanes


def _race(lanes: list[Lane]) -> str:
    return lanes[0].request.group if lanes else ""


def _message(prompt: Prompt) -> str:
    """Return the message that a prompt ends with."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def stored(service: Service, chat: Chat) -> Chat:
    """Return a chat with the answers of its race in the database; unchanged if there is none.

    Raises:
        StoreError: The database cannot be read.
    """
    if service.store is None or not chat.race:
        return chat
    rows, _ = service.store.runs(f"race:{chat.race}", limit=200)
    headers = [row.header for row in reversed(rows) if row.header.group == chat.race]
    if not headers:
        return chat
    race, prompt = chat.race, chat.prompt or headers[0].prompts[0]
    names = ["~".join(h.run_id for h in group) for group in grouped(headers)][:MAX_COMPARED]
    answers = ()
    if not long_runs(service.store, [name.split("~")[0] for name in names]):
        traces = find_traces(service, ",".join(names))
        answers = tuple((name_of(trace.header), trace.text) for trace in traces)
    found = chat if chat.prompt else chat.asked(prompt)
    return found.started((), race).answered(answers, tuple(names))


class Streams:
    """The stream of updates that each page reads: a new one ends the one before."""

    def __init__(self) -> None:
        self._pages: OrderedDict[str, object] = OrderedDict()

    async def only(
        self, request: gr.Request | None, updates: AsyncIterator[dict[Any, Any]]
    ) -> AsyncIterator[dict[Any, Any]]:
        """Yield updates until they end, or until the same page begins to read other ones."""
        page, mine = (request.session_hash if request else None) or "", object()
        self._pages[page] = mine
        self._pages.move_to_end(page)
        while len(self._pages) > MOST_PAGES:
            self._pages.popitem(last=False)
        following: asyncio.Future[Any] | None = None
        try:
            while True:
                following = following or asyncio.ensure_future(anext(updates, None))
                done, _ = await asyncio.wait({following}, timeout=LOOK)
                if self._pages.get(page) is not mine:
                    return
                if done:
                    update, following = following.result(), None
                    if update is None:
                        return
                    yield update
        finally:
            if following is not None:
                following.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await following

    def handler(self, stream: Callable[..., AsyncIterator[dict[Any, Any]]]) -> Any:
        """Return an event handler whose updates are the only ones of its page."""

        async def handle(request: gr.Request, *values: Any) -> AsyncIterator[dict[Any, Any]]:
            async for update in self.only(request, stream(*values)):
                yield update

        handle.__name__ = stream.__name__  # Gradio names the event by it
        return handle

    def pointed(self, stream: Callable[..., AsyncIterator[dict[Any, Any]]]) -> Any:
        """Return such a handler of an event that carries data, the first argument of `stream`."""

        async def handle(
            request: gr.Request, event: gr.EventData, *values: Any
        ) -> AsyncIterator[dict[Any, Any]]:
            async for update in self.only(request, stream(event, *values)):
                yield update

        handle.__name__ = stream.__name__
        return handle
