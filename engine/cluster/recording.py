"""A run's trace while it grows: in memory, told to a listener, with samples of how busy the devices are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from engine.cluster.occupancy import Sampler
from engine.trace.events import Event, Header, Occupancy, Row, Status
from engine.trace.trace import Trace
from engine.workers.transports.process import ProcessWorker

if TYPE_CHECKING:
    from engine.cluster.placement import RunWorkers
    from engine.run.sequences import Sequence

Listener: TypeAlias = Callable[[Event], None]


class Recording:
    """The run's trace in memory, and its listener's.

    Args:
        header: Told at once.
        listener: Hears every event, the footer last; the first error it raises is kept and ends the run.
    """

    def __init__(self, header: Header, listener: Listener | None) -> None:
        self.trace = Trace(header)
        self.sequences: list[Sequence] = []
        self.clock: Callable[[], int] = lambda: 0
        self.error: BaseException | None = None
        """What the listener raised; it hears nothing more."""
        self._listener = listener
        self._tell(header)

    def add(self, event: Row) -> None:
        """Take one row."""
        self.trace.add(event)
        self._tell(event)

    def end(self, status: Status, error: str) -> None:
        """Take the footer."""
        reasons = tuple(sequence.reason for sequence in self.sequences)
        footer = self.trace.new_footer(status, error, reasons)
        self.trace.add(footer)
        self._tell(footer)

    def _tell(self, event: Event) -> None:
        if self._listener is None or self.error is not None:
            return
        try:
            self._listener(event)
        except BaseException as error:  # noqa: BLE001 - it ends the run before its next job
            self.error = error


def sampler(crew: RunWorkers, recording: Recording, loop: asyncio.AbstractEventLoop) -> Sampler:
    """Return what measures how busy the crew's devices are; its samples come from a thread of its own."""
    pids = {d.name: w.pid for w in crew.members if isinstance(w, ProcessWorker) for d in w.devices}

    def emit(row: Occupancy) -> None:
        loop.call_soon_threadsafe(recording.add, row)

    return Sampler(crew.devices, emit, recording.clock, pids=pids)
