"""The events of a run in progress, in memory; each page reads them at its own pace."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from specscope.engine.trace.events import Footer, Header

if TYPE_CHECKING:
    from specscope.engine.trace.events import Event


class LiveLog:
    """The newest events of a run. Thread-safe; `append` never waits for a reader.

    Memory is bounded: the header and at least the newest `capacity` events are kept. A reader that
    is further behind goes on with the oldest event kept. The database has the whole run.
    """

    def __init__(self, capacity: int = 500_000) -> None:
        self.capacity = capacity
        self.dropped = 0
        """Dropped events; a reader whose cursor is 1 to `dropped` missed some."""
        self._header: Header | None = None
        self._events: list[Event] = []
        self._closed = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        return self._closed

    def append(self, event: Event) -> None:
        """Add an event; a worker may send some after the footer, which are ignored."""
        with self._lock:
            if self._closed:
                return
            if isinstance(event, Header):
                self._header = event
                return
            self._events.append(event)
            self._closed = isinstance(event, Footer)
            # Drop a quarter at a time: dropping single events would move the whole list for each.
            if len(self._events) > self.capacity + self.capacity // 4:
                excess = len(self._events) - self.capacity
                del self._events[:excess]
                self.dropped += excess

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def since(self, cursor: int = 0) -> tuple[list[Event], int]:
        """Return the events after a cursor (0: all, header first), and the next cursor."""
        with self._lock:
            if self._header is None:
                return [], 0
            # A cursor counts the header and all events so far: after the header it is 1.
            first = max(0, cursor - 1 - self.dropped)
            fresh = self._events[first:]
            after = 1 + self.dropped + len(self._events)
        return ([self._header, *fresh] if cursor == 0 else fresh), after
