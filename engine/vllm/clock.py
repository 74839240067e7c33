"""Times of a worker: the host's clock, or events of a CUDA stream that make nothing wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

RENEWED_NS = 5_000_000_000
"""Age at which times begin at a new event: times since an event are float32 milliseconds."""
MOST_LATE_NS = 5_000_000
"""Least distance from the host's clock that is taken for drift and not for a thread's delay."""


class HostClock:
    """Of a CPU, whose calls return when their work is done."""

    def mark(self) -> int:
        return perf_counter_ns()

    def times(self, marks: Sequence[int]) -> list[int]:
        return [*marks]


class Events:
    """Of a GPU, whose launches return before it has run them.

    `mark` is called by the worker's thread, `times` by another one, which may wait.
    """

    def __init__(self, event: Callable[[], Any] | None = None) -> None:
        """Compare the stream with the host's clock; this waits for the stream, once."""
        self._event = event or _cuda_event
        self._anchor = self.mark()
        self._anchor.synchronize()
        self._time = perf_counter_ns()
        self._late = RENEWED_NS
        """Least delay of the host's clock behind the events, since the anchor."""

    def mark(self) -> Any:
        event = self._event()
        event.record()
        return event

    def times(self, marks: Sequence[Any]) -> list[int]:
        """Wait for the last of the marks; return their times on the host's clock."""
        marks[-1].synchronize()
        now = perf_counter_ns()
        found = [self._time + round(1e6 * self._anchor.elapsed_time(mark)) for mark in marks]
        self._late = min(self._late, now - found[-1])
        early = self._late < 0  # an event cannot be later than the look at it
        if early or found[-1] - self._time > RENEWED_NS:
            drift = self._late if early or self._late > MOST_LATE_NS else 0
            self._anchor, self._time, self._late = marks[-1], found[-1] + drift, RENEWED_NS
        return found


def _cuda_event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True, blocking=True)
