"""What every transport offers a run: submit a job, get a ticket for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from engine.trace.events import Device
from engine.workers.jobs import Connect, Job, Join, Load, Reply


class Ticket(NamedTuple):
    """A job under way."""

    reply: asyncio.Future[Reply]
    """Done when the device is done with it, also after `stop`."""
    stop: Callable[[], None]
    """Ask the worker to end after the forward it is in; the reply still comes."""


class Worker(Protocol):
    """One device, or several that work as one, with models; it runs one forward job at a time, in order of submission."""

    @property
    def name(self) -> str:
        """Unique in its cluster; its slab of q carries the same name."""
        ...

    @property
    def devices(self) -> tuple[Device, ...]:
        """What it works on; a stamp's lane is an index into it."""
        ...

    def lanes(self, model: str) -> int:
        """Return how many of its devices, the first ones, a forward of the model keeps busy."""
        ...

    def prepare(self, job: Load | Connect | Join) -> Callable[[], Reply]:
        """Start a job outside of runs and return how to wait for it.

        Raises (when waiting):
            ModelError: A model cannot be loaded.
            WorkerDied: The worker ended.
        """
        ...

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve runs of this event loop from now on."""
        ...

    def detach(self) -> None:
        """Stop serving the loop; nothing may be under way."""
        ...

    def submit(self, job: Job) -> Ticket:
        """Start a job. Control jobs are answered without waiting for forwards; a judge waits for its own scores."""
        ...

    def kill(self, why: str) -> None:
        """End a worker that does not answer: its jobs fail with `WorkerDied`, which says why.

        What shares this process cannot be ended: a thread works on until its forward is over.
        """
        ...

    def close(self) -> None:
        """End the worker and free what it holds."""
        ...
