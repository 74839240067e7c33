"""Local threads: one thread per worker; drafter and target on one GPU have a CUDA stream each."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from functools import partial
from queue import SimpleQueue

import torch

from specscope.engine.trace.events import Device
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import CONTROL, Job, Preparation, Reply
from specscope.engine.worker.worker import Ticket, finished, settle


class ThreadWorker:
    """A device served by a thread of this process."""

    ended = False
    """A thread ends with this process."""

    def __init__(self, name: str, device: Device, threads: int = 1) -> None:
        self.name = name
        self.devices = (device,)
        self._host = Host(name)
        self._threads = threads
        self._jobs: SimpleQueue[tuple[Job, asyncio.Future[Reply], threading.Event] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, name=f"specscope {name}", daemon=True)
        self._thread.start()

    def prepare(self, job: Preparation) -> Callable[[], Reply]:
        return finished(partial(self._host.handle, job)).result  # in the calling thread

    def lanes(self, model: str) -> int:  # noqa: ARG002 - it has one device
        return 1

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def detach(self) -> None:
        self._loop = None

    def submit(self, job: Job) -> Ticket:
        """Start a job; a control job runs in the calling thread, unless it waits for scores."""
        assert self._loop is not None, "submit needs an attached loop"
        reply: asyncio.Future[Reply] = self._loop.create_future()
        stop = threading.Event()
        if isinstance(job, CONTROL) and self._host.ready(job):
            settle(reply, partial(self._host.handle, job, stop.is_set))
        else:
            self._jobs.put((job, reply, stop))
        return Ticket(reply, stop.set)

    def kill(self, why: str) -> None:
        """Do nothing: a thread cannot be ended from outside."""

    def close(self) -> None:
        """End the thread after its current forward."""
        self._jobs.put(None)
        self._thread.join(timeout=10)

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)
        with stream(self.devices[0]):
            while (item := self._jobs.get()) is not None:
                job, reply, stop = item
                done = finished(partial(self._host.handle, job, stop.is_set))
                if (loop := self._loop) is not None:
                    loop.call_soon_threadsafe(settle, reply, done.result)


@contextlib.contextmanager
def stream(device: Device) -> Generator[None]:
    """Submit this thread's work to a stream of its own, if the device is a GPU."""
    if device.kind != "cuda":
        yield
        return
    index = device.name.split("/")[0]
    with torch.cuda.device(index), torch.cuda.stream(torch.cuda.Stream(index)):
        yield
