"""The clock of another node, compared with this one's by round trips."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from engine.workers.jobs import Reply

TRIPS = 16
"""Round trips of one comparison."""


class Clock(NamedTuple):
    """How a node's clock relates to this process's, in nanoseconds."""

    offset: int = 0
    """The node's clock minus this one."""
    uncertainty: int = 0
    """The offset is wrong by at most this."""

    def local(self, reply: Reply) -> Reply:
        """Return a worker's reply with its time stamps on this process's clock."""
        if not self.offset:
            return reply
        by = -self.offset
        return reply._replace(
            stamps=tuple(
                stamp._replace(
                    start=stamp.start + by,
                    end=stamp.end + by,
                    parts=tuple(part.later(by) for part in stamp.parts),
                )
                for stamp in reply.stamps
            )
        )


def compare(there: Callable[[], int], here: Callable[[], int] = time.perf_counter_ns) -> Clock:
    """Return the offset of a clock that is read over a network.

    The clock was read at some moment of the round trip. The middle of the fastest trip is wrong by
    half of that trip at most.

    Args:
        there: Reads the other clock, in nanoseconds; takes a round trip.
        here: Reads this clock.
    """
    best = Clock(0, -1)
    for _ in range(TRIPS):
        sent = here()
        read = there()
        back = here()
        half = (back - sent + 1) // 2
        if best.uncertainty < 0 or half < best.uncertainty:
            best = Clock(read - (sent + back) // 2, half)
    return best
