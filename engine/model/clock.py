"""Times of work on a device, in nanoseconds of this process's `perf_counter_ns`.

On CUDA a forward returns before the device has run it. A mark is then an event on the stream, whose
time is read once, when the job's results are: no forward waits for its own end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

RENEWED_NS = 5_000_000_000
"""Age at which the anchor is replaced: CUDA's times since an event are float32 milliseconds."""


class HostEvent:
    """A time of the host."""

    def __init__(self) -> None:
        self.ns = 0

    def record(self) -> None:
        self.ns = time.perf_counter_ns()

    def synchronize(self) -> None:
        """Do nothing: what it follows has been done."""


class Clock:
    """Marks in time, of work on a CPU.

    A mark is a time in nanoseconds, or a negative number until `read` returns its time.
    """

    @classmethod
    def of(cls, device: torch.device) -> Clock:
        if device.type != "cuda":
            return cls()
        return StreamClock(lambda: torch.cuda.Event(enable_timing=True, external=True))

    @property
    def uncertainty(self) -> int:
        """Most nanoseconds by which a time may be wrong."""
        return 0

    def event(self) -> Any:
        """Return an event that can be recorded again and again, also in a CUDA graph."""
        return HostEvent()

    def mark(self) -> int:
        """Return a mark after the work submitted so far."""
        return time.perf_counter_ns()

    def hold(self, event: Any) -> int:
        """Return the mark of a recorded event."""
        return event.ns

    def wait(self) -> None:
        """Wait for the work submitted so far by this thread."""

    def read(self) -> Callable[[int], int]:
        """Wait for the work that was marked; return a function mark -> time."""
        return int


class Anchor(NamedTuple):
    """An event, and its time on the host's clock."""

    event: Any
    ns: int
    uncertainty: int


class StreamClock(Clock):
    """Marks on CUDA's current stream.

    The threads of a worker share it: one forwards, one judges. Each reads its own marks.

    Args:
        event: Makes an event; tests replace CUDA's.
    """

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event, self._own = event, threading.local()
        self._anchor = self._aligned()

    @property
    def uncertainty(self) -> int:
        return self._anchor.uncertainty

    @property
    def _held(self) -> list[Any]:
        """Events that this thread recorded since it last read."""
        return vars(self._own).setdefault("held", [])

    def event(self) -> Any:
        return self._event()

    def mark(self) -> int:
        event = self._event()
        event.record()
        return self.hold(event)

    def hold(self, event: Any) -> int:
        self._held.append(event)
        return -len(self._held)

    def wait(self) -> None:
        event = self._event()
        event.record()
        event.synchronize()

    def read(self) -> Callable[[int], int]:
        if not self._held:
            return int
        self._held[-1].synchronize()
        anchor = self._anchor
        times = [anchor.ns + round(1e6 * anchor.event.elapsed_time(event)) for event in self._held]
        self._held.clear()
        if times[-1] - anchor.ns > RENEWED_NS:
            self._anchor = self._aligned()
        return lambda mark: times[-mark - 1] if mark < 0 else mark

    def _aligned(self) -> Anchor:
        """Compare the stream with the host's clock: the shortest of five brackets of an event."""
        brackets = [self._bracket() for _ in range(5)]
        begun, ended, event = min(brackets, key=lambda bracket: bracket[1] - bracket[0])
        return Anchor(event, (begun + ended) // 2, (ended - begun + 1) // 2)

    def _bracket(self) -> tuple[int, int, Any]:
        event, begun = self._event(), time.perf_counter_ns()
        event.record()
        event.synchronize()
        return begun, time.perf_counter_ns(), event
