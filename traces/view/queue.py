"""The queue of a run under load: how many requests wait for a KV slot, as a track of its own."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from traces.requests import requests
from traces.view.clock import decoding_clock

if TYPE_CHECKING:
    from engine.trace.trace import Trace
    from traces.view.tracks import TrackView

ROLE = "requests"


def queue(trace: Trace) -> list[TrackView]:
    """Return a track with a span for each time in which as many requests wait; `rows` counts them.

    A run without arrivals has none, nor has one in which no request waited, or that still goes on.
    """
    if trace.footer is None:
        return []
    changes = Counter[int]()
    for request in requests(trace):
        changes[request.arrival] += 1
        end = max(request.arrival, trace.footer.time) if request.begin is None else request.begin
        changes[end] -= 1
    times = sorted(time for time, change in changes.items() if change)
    waiting = accumulate(changes[time] for time in times)
    spans = [(*span, n) for span, n in zip(pairwise(times), waiting, strict=False) if n > 0]
    if not spans:
        return []
    clock, count = decoding_clock(trace), len(spans)
    return [
        {
            "device": ROLE,
            "label": "requests that wait",
            "role": ROLE,
            "lanes": 1,
            "spans": {
                "id": [-2 - i for i in range(count)],  # -1 is the draft span of tokens without one
                "kind": ["queue"] * count,
                "start": [clock(start) for start, _, _ in spans],
                "end": [clock(end) for _, end, _ in spans],
                "lane": [0] * count,
                "step": [0] * count,
                "rows": [n for _, _, n in spans],
                "context": [0] * count,
                "fate": ["kept"] * count,
            },
            "waits": [],
            "measured": None,
        }
    ]
