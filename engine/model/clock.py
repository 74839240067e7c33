"""Times of work on a device, in nanoseconds of this process's `perf_counter_ns`.

On CUDA a forward returns before the device has run it. A mark is then an event on the stream, whose
time is read once, when the job's results are: no forward waits for its own end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

RENEWED_NS = 5_000_000_000
"""Age at which the anchor is replaced: CUDA's times since an event are float32 milliseconds."""


class HostEvent:
    """A time of the host."""

    def __init__(self) -> None:
        self.ns = 0

    def record(self) -> None:
        self.ns = time.perf_counter_ns()


class Clock:
    """Marks in time, of work on a CPU.

    A mark is a time in nanoseconds, or a negative number until `read` returns its time.
    """

    uncertainty = 0
    """Most nanoseconds by which a time may be wrong."""

    @classmethod
    def of(cls, device: torch.device) -> Clock:
        if device.type != "cuda":
            return cls()
        return StreamClock(lambda: torch.cuda.Event(enable_timing=True, external=True))

    def event(self) -> Any:
        """Return an event that can be recorded again and again, also in a CUDA graph."""
        return HostEvent()

    def mark(self) -> int:
        """Return a mark after the work submitted so far."""
        return time.perf_counter_ns()

    def hold(self, event: Any) -> int:
        """Return the mark of a recorded event."""
        return event.ns

    def read(self) -> Callable[[int], int]:
        """Wait for the work that was marked; return a function mark -> time."""
        return int


class StreamClock(Clock):
    """Marks on CUDA's current stream.

    Args:
        event: Makes an event; tests replace CUDA's.
    """

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._held = list[Any]()
        self._align()

    def event(self) -> Any:
        return self._event()

    def mark(self) -> int:
        event = self._event()
        event.record()
        return self.hold(event)

    def hold(self, event: Any) -> int:
        self._held.append(event)
        return -len(self._held)

    def read(self) -> Callable[[int], int]:
        if not self._held:
            return int
        self._held[-1].synchronize()
        times = [self._at + round(1e6 * self._anchor.elapsed_time(event)) for event in self._held]
        self._held.clear()
        if times[-1] - self._at > RENEWED_NS:
            self._align()
        return lambda mark: times[-mark - 1] if mark < 0 else mark

    def _align(self) -> None:
        """Compare the stream with the host's clock: the shortest of five brackets of an event."""
        brackets = [self._bracket() for _ in range(5)]
        begun, ended, self._anchor = min(brackets, key=lambda bracket: bracket[1] - bracket[0])
        self._at, self.uncertainty = (begun + ended) // 2, (ended - begun + 1) // 2

    def _bracket(self) -> tuple[int, int, Any]:
        event, begun = self._event(), time.perf_counter_ns()
        event.record()
        event.synchronize()
        return begun, time.perf_counter_ns(), event
