"""A run's trace while the run goes on: kept in memory, passed to a listener."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from engine.cluster.occupancy import Sampler
from engine.cluster.others import OtherPrograms
from engine.cluster.ray_samples import NodeSampler
from engine.trace.events import Event, Header, Occupancy, Row, Status
from engine.trace.trace import Trace
from engine.workers.ray.worker import RayWorker
from engine.workers.transports.process import ProcessWorker

if TYPE_CHECKING:
    from engine.cluster.placement import RunWorkers
    from engine.run.sequences import Sequence

Listener: TypeAlias = Callable[[Event], None]


class Recording:
    """Collects the run's trace and passes every event to a listener.

    Args:
        header: Recorded at once.
        listener: Takes every event, the footer last. Its first error is kept, and ends the run.
    """

    def __init__(self, header: Header, listener: Listener | None) -> None:
        self.trace = Trace(header)
        self.sequences: list[Sequence] = []
        self.clock: Callable[[], int] = lambda: 0
        self.error: BaseException | None = None
        """The listener's first error; after it the listener gets no more events."""
        self._listener = listener
        self._emit(header)

    def add(self, event: Row) -> None:
        """Record one row."""
        self.trace.add(event)
        self._emit(event)

    def end(self, status: Status, error: str) -> None:
        """Record the footer."""
        reasons = tuple(sequence.reason for sequence in self.sequences)
        footer = self.trace.new_footer(status, error, reasons)
        self.trace.add(footer)
        self._emit(footer)

    def _emit(self, event: Event) -> None:
        if self._listener is None or self.error is not None:
            return
        try:
            self._listener(event)
        except BaseException as error:  # noqa: BLE001 - it ends the run before its next job
            self.error = error


def sampler(
    workers: RunWorkers, recording: Recording, loop: asyncio.AbstractEventLoop
) -> Sampler | NodeSampler:
    """Return a sampler of the load of the run's devices; it samples in its own threads."""

    def emit(row: Occupancy) -> None:
        loop.call_soon_threadsafe(recording.add, row)

    if nodes := _on_nodes(workers):
        return NodeSampler(nodes, emit, recording.clock)
    return Sampler(workers.devices, emit, recording.clock, pids=_pids(workers))


def other_programs(workers: RunWorkers) -> OtherPrograms | None:
    """Return the load by other programs from now on; None on a Ray cluster, where none is read."""
    return None if _on_nodes(workers) else OtherPrograms(set(_pids(workers).values()))


def _on_nodes(workers: RunWorkers) -> list[RayWorker]:
    """Return the workers on nodes of a Ray cluster."""
    return [worker for worker in workers.members if isinstance(worker, RayWorker)]


def _pids(workers: RunWorkers) -> dict[str, int]:
    """Return the process id of each device's worker, by the device's name."""
    return {d.name: w.pid for w in workers.members if isinstance(w, ProcessWorker) for d in w.devices}
