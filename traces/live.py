"""The events of a run while it goes on, in memory: the run appends, any number of pages read, each at its own pace."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from engine.trace.events import Footer, Header

if TYPE_CHECKING:
    from engine.trace.events import Event


class LiveLog:
    """The newest events of a run. Safe to use from several threads; nobody ever waits for a reader.

    Memory is bounded by one rule: the header and the newest `capacity` events are kept. A reader that falls further
    behind goes on with the oldest kept; `dropped` says how many there are no more. The whole run is in the store.
    """

    def __init__(self, capacity: int = 500_000) -> None:
        self.capacity = capacity
        self.dropped = 0
        """Events after the header that are gone: a reader whose cursor is at most this (but not 0) missed some."""
        self._header: Header | None = None
        self._events: list[Event] = []
        self._closed = False
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        """Whether no more events come: the footer was appended, or `close` called."""
        return self._closed

    def append(self, event: Event) -> None:
        """Take an event; after the end they are ignored, because a run may end before its last worker does."""
        with self._lock:
            if self._closed:
                return
            if isinstance(event, Header):
                self._header = event
                return
            self._events.append(event)
            self._closed = isinstance(event, Footer)
            # Cut a quarter at a time: cutting one event each time would move the whole list for every event.
            if len(self._events) > self.capacity + self.capacity // 4:
                excess = len(self._events) - self.capacity
                del self._events[:excess]
                self.dropped += excess

    def close(self) -> None:
        """Say that no more events come, for a run that ends without a footer."""
        with self._lock:
            self._closed = True

    def since(self, cursor: int = 0) -> tuple[list[Event], int]:
        """Return the events after a cursor, and the cursor for the next call. Cursor 0 begins with the header."""
        with self._lock:
            if self._header is None:
                return [], 0
            # A cursor counts the header and every event so far: after the header it is 1.
            first = max(0, cursor - 1 - self.dropped)
            fresh = self._events[first:]
            after = 1 + self.dropped + len(self._events)
        return ([self._header, *fresh] if cursor == 0 else fresh), after
