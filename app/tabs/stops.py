"""Stop buttons of long work: sweeps of the Lab, series of loads."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager


class Stops:
    """The events that end the work in progress, by the name of the work, which its page has."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}

    @contextmanager
    def work(self) -> Iterator[tuple[str, threading.Event]]:
        """Return a name for new work, and the event that Stop sets."""
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
