"""Times of a CUDA stream for a recording: events in place of the host's clock.

A launch returns before the device has run it, so the host's clock would time the launches. An
event on the stream is read once it has passed: recording makes no forward wait. Standard library
only: the program that is recorded gives what makes an event.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

RENEWED_NS = 5_000_000_000
"""Age at which the anchor is replaced: times since an event are float32 milliseconds."""
BRACKETS = 5


class EventAnchor(NamedTuple):
    """An event, and its time on the host's clock."""

    event: Any
    time: int
    error: int
    """Most nanoseconds by which the time may be wrong."""


class Marks(NamedTuple):
    """The events at a span's start and end."""

    anchor: EventAnchor
    start: Any
    end: Any = None

    def passed(self) -> bool:
        return self.end.query()

    def times(self) -> tuple[int, int]:
        """Wait for the events; return their times on the host's clock."""
        self.end.synchronize()
        event, at, _ = self.anchor
        start, end = (at + round(1e6 * event.elapsed_time(mark)) for mark in (self.start, self.end))
        return start, end


class Stream:
    """The events of a device: on the stream that is current where a span begins and ends.

    Args:
        event: Makes an event with `record`, `query`, `synchronize` and `elapsed_time`, such as
            `lambda: torch.cuda.Event(enable_timing=True)`.
    """

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._anchor = EventAnchor(None, 0, 0)

    def align(self) -> int:
        """Compare the stream with the host's clock: the shortest of five brackets of an event.

        Returns:
            Most nanoseconds by which a time may be wrong.
        """
        self._anchor = min((self._bracket() for _ in range(BRACKETS)), key=lambda anchor: anchor.error)
        return self._anchor.error

    def renew(self) -> None:
        """Compare again after some seconds; this waits for the stream."""
        if perf_counter_ns() - self._anchor.time > RENEWED_NS:
            self.align()

    def begin(self) -> Marks:
        return Marks(self._anchor, self._marked())

    def finish(self, marks: Marks) -> Marks:
        """Return the marks of a span that has ended."""
        return marks._replace(end=self._marked())

    def _marked(self) -> Any:
        event = self._event()
        event.record()
        return event

    def _bracket(self) -> EventAnchor:
        begun, event = perf_counter_ns(), self._marked()
        event.synchronize()
        ended = perf_counter_ns()
        return EventAnchor(event, (begun + ended) // 2, (ended - begun + 1) // 2)
