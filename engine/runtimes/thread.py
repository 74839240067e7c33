"""Local threads: one thread per worker; drafter and target on one GPU have a CUDA stream each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Sequence
from queue import SimpleQueue

import torch

from specscope.engine.trace.events import Device
from specscope.engine.worker.host import Host
from specscope.engine.worker.jobs import CONTROL, Drop, Job
from specscope.engine.worker.worker import Pump


class ThreadWorker(Pump):
    """A device served by a thread of this process."""

    ended = False
    """A thread ends with this process."""

    def __init__(self, name: str, device: Device, threads: int = 1) -> None:
        super().__init__(name, device)
        self._host = Host(name)
        self._threads = threads
        self._jobs: SimpleQueue[tuple[int, Job] | None] = SimpleQueue()
        self._stopped = set[int]()
        self._thread = threading.Thread(target=self._serve, name=f"specscope {name}", daemon=True)
        self._thread.start()

    def _post(self, number: int, job: Job, drops: Sequence[Drop]) -> None:
        """Start a job; in the calling thread between runs, and a control job with its scores."""
        for drop in drops:
            self._host.handle(drop)
        if self._loop is None or (isinstance(job, CONTROL) and self._host.ready(job)):
            self._handle(number, job)
        else:
            self._jobs.put((number, job))

    def _stop(self, number: int) -> None:
        self._stopped.add(number)

    def _handle(self, number: int, job: Job) -> None:
        try:
            value = self._host.handle(job, lambda: number in self._stopped)
        except BaseException as error:  # noqa: BLE001 - raised where the reply is awaited
            value = error
        self._stopped.discard(number)
        self._answer(number, value)

    def kill(self, why: str) -> None:
        """Do nothing: a thread cannot be ended from outside."""

    def close(self) -> None:
        """End the thread after its current forward; nothing is compiled for its models any more."""
        self._jobs.put(None)
        self._thread.join(timeout=10)
        self._host.forwards.close()

    def _serve(self) -> None:
        torch.set_num_threads(self._threads)
        with stream(self.devices[0]):
            while (item := self._jobs.get()) is not None:
                self._handle(*item)


@contextlib.contextmanager
def stream(device: Device) -> Generator[None]:
    """Submit this thread's work to a stream of its own, if the device is a GPU."""
    if device.kind != "cuda":
        yield
        return
    index = device.name.split("/")[0]
    with torch.cuda.device(index), torch.cuda.stream(torch.cuda.Stream(index)):
        yield
