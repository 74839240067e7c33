"""What every transport offers a run: submit a job, get a ticket for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from engine.model.slots import LanguageModel
from engine.runtime.events import Device
from engine.runtime.jobs import Job, Reply

Loaders = Mapping[str, Callable[[], LanguageModel]]
"""How a worker makes its models, by name; must pickle for worker processes."""


class Facts(NamedTuple):
    """What a worker tells of its model once it is loaded."""

    vocab_size: int
    context: int


class Ticket(NamedTuple):
    """A job under way."""

    reply: asyncio.Future[Reply]
    """Done when the device is done with it, also after `stop`."""
    stop: Callable[[], None]
    """Ask the worker to end after the forward it is in; the reply still comes."""


class Worker(Protocol):
    """A device with models on it that runs one forward job at a time, in order of submission."""

    @property
    def device(self) -> Device:
        """The device it serves."""
        ...

    @property
    def facts(self) -> Mapping[str, Facts]:
        """What it knows of its models, by name."""
        ...

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve runs of this event loop from now on."""
        ...

    def detach(self) -> None:
        """Stop serving the loop; nothing may be under way."""
        ...

    def submit(self, job: Job) -> Ticket:
        """Start a job. Control jobs are answered without waiting for forwards."""
        ...

    def close(self) -> None:
        """End the worker and free what it holds."""
        ...
