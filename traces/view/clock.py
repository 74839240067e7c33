"""The time axis of the viewer, and the devices that get a track on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from traces.waiting import decode_window

if TYPE_CHECKING:
    from engine.trace.events import Device
    from engine.trace.trace import Trace

Clock = Callable[[int], float]


def decoding_clock(trace: Trace) -> Clock:
    """Return the function ns since the run's start -> ms since decoding began, to whole us."""
    start = decode_window(trace)[0]
    return lambda ns: round((ns - start) / 1e6, 3)


def working_devices(trace: Trace) -> list[Device]:
    """Return the target's devices, and those that did more than prefill."""
    active = {s.device for s in trace.spans if s.kind != "prefill"}
    return [d for d in trace.header.devices if "target" in d.role or d.name in active]
