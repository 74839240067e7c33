"""Settings shared by the tabs' event handlers, and Stop buttons of long work."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import gradio as gr

Update = dict[Any, Any]
"""New values by component; other components stay unchanged."""
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""Settings of an event: no spinner, no public endpoint."""


class Stops:
    """The events that end the work in progress, by the name of the work, which its page has."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}

    @contextmanager
    def work(self) -> Iterator[tuple[str, threading.Event]]:
        name, stop = uuid.uuid4().hex, threading.Event()
        self._events[name] = stop
        try:
            yield name, stop
        finally:
            del self._events[name]

    def end(self, name: str) -> None:
        """End the work of a name: its run in progress within one forward; nothing if it is over."""
        if name in self._events:
            self._events[name].set()

    def connect(
        self,
        start: gr.Button,
        stop: gr.Button,
        run: Callable[..., Iterable[tuple[Any, ...]]],
        given: list[gr.components.Component],
        shown: list[gr.components.Component],
    ) -> None:
        """Let `start` run the work and `stop`, which is off until then, end it.

        The first of what `run` yields, and of `shown`, is the work's name.
        """

        @wraps(run)
        def watched(*values: Any) -> Iterator[tuple[Any, ...]]:
            for state in run(*values):
                yield (*state, gr.update(interactive=True))

        off = "() => ({ __type__: 'update', interactive: false })"
        start.click(watched, given, [*shown, stop], **QUIET).then(None, None, stop, js=off, **QUIET)
        stop.click(self.end, shown[0], None, concurrency_limit=None, **QUIET)
