"""Local processes: one worker process per device, on a CPU with a pinned core and one thread.

Jobs and replies are pickled tuples on a socket pair. A prefix is sent as (length kept, new ids):
both sides remember the last prefix of each sequence. q is never sent: judges read its buffer.
When a worker dies, its jobs fail with `WorkerDied`, which names the device. A watchdog
(`specscope.engine.runtimes.watchdog`) kills a worker that no longer works on its jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from specscope.engine.errors import WorkerDied
from specscope.engine.hangs import EVERY_S
from specscope.engine.runtimes.forks import ForkedProcess, prepare, start_process, worker_environment
from specscope.engine.runtimes.watchdog import Owed, Watchdog
from specscope.engine.trace.events import Device
from specscope.engine.types import Prefix
from specscope.engine.worker.jobs import Drop, Job, Link, Reply
from specscope.engine.worker.worker import Pump


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker process is; its first message, with its variables and its folder."""

    name: str
    device: Device
    threads: int
    core: int | None
    """CPU core to pin the process to; None for no pinning."""


class Wire:
    """Shortens prefixes to their new tokens.

    Both sides have one and see the same jobs in the same order.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], np.ndarray] = {}

    def pack(self, job: Any) -> Any:
        prefixes = getattr(job, "prefixes", None)
        return (
            job
            if prefixes is None
            else replace(job, prefixes=tuple(map(partial(self._pack, job.model), prefixes)))
        )

    def unpack(self, job: Any) -> Any:
        packed = getattr(job, "prefixes", None)
        return (
            job
            if packed is None
            else replace(job, prefixes=tuple(map(partial(self._unpack, job.model), packed)))
        )

    def _pack(self, model: str, prefix: Prefix) -> tuple[int, int, bytes]:
        last = self._last.get((model, prefix.sequence), _NO_TOKENS)
        n = min(len(last), len(prefix))
        differs = np.flatnonzero(last[:n] != prefix.tokens[:n])
        kept = int(differs[0]) if differs.size else n
        self._last[model, prefix.sequence] = prefix.tokens
        return prefix.sequence, kept, prefix.tokens[kept:].tobytes()

    def _unpack(self, model: str, packed: tuple[int, int, bytes]) -> Prefix:
        sequence, kept, new = packed
        last = self._last.get((model, sequence), _NO_TOKENS)
        tokens = np.concatenate([last[:kept], np.frombuffer(new, dtype=np.int64)])
        self._last[model, sequence] = tokens
        return Prefix(sequence, tokens)


_NO_TOKENS = np.empty(0, dtype=np.int64)


class ProcessWorker(Pump):
    """A worker in a separate process."""

    def __init__(self, setup: Setup) -> None:
        first = setup, worker_environment(setup.threads), os.getcwd()
        super().__init__(setup.name, setup.device)
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._wire = Wire()
        self._replies = 0
        self._pace = 0.0
        self._waits = False
        self._reason = ""
        self._closing = threading.Event()
        started: Future[subprocess.Popen[bytes] | ForkedProcess] = Future()
        start = partial(_start, setup, theirs)
        self._keeper = threading.Thread(
            target=self._keep, args=(start, started), name=f"keeper of {self.name}"
        )
        self._keeper.daemon = True
        self._keeper.start()
        self._process = started.result()
        self.pid = self._process.pid
        self._write(first)

    def _keep(
        self,
        start: Callable[[], subprocess.Popen[bytes] | ForkedProcess],
        started: Future[subprocess.Popen[bytes] | ForkedProcess],
    ) -> None:
        """Start the process and check it with the watchdog until it ends.

        The kernel kills the process when this thread ends, and a forked one when the fork server
        ends (`end_with_parent` in `specscope.engine.runtimes.forks`).
        """
        try:
            process = start()
            watchdog = Watchdog(process.pid)
        except BaseException as error:  # noqa: BLE001 - raised in __init__
            started.set_exception(error)
            return
        started.set_result(process)
        while not self._closing.wait(EVERY_S) and process.poll() is None:
            if why := watchdog.check(self._signs()):
                self.kill(why)

    def _signs(self) -> Owed:
        # A rank of a split model sleeps while another rank has no processor.
        patient = self._waits or self.devices[0].kind != "cpu"
        return Owed(tuple(self._unanswered), self._replies, self._connection.poll(), patient, self._pace)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        super().attach(loop)
        loop.add_reader(self._connection.fileno(), self._read)

    def detach(self) -> None:
        self._stop_reading()
        super().detach()

    def _stop_reading(self) -> None:
        if self._loop is not None and not self._connection.closed:
            self._loop.remove_reader(self._connection.fileno())

    def _post(self, number: int, job: Job, drops: Sequence[Drop]) -> None:
        self._waits = self._waits or isinstance(job, Link)
        self._write((number, self._wire.pack(job), *drops))

    def _stop(self, number: int) -> None:
        self._write((number, None))

    def kill(self, why: str) -> None:
        self._reason = self._reason or why
        self._process.kill()

    def close(self) -> None:
        """Kill the process: it has no state to save."""
        self._closing.set()
        self._keeper.join()
        self._connection.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver or a disk may delay its end
            self._process.wait(timeout=3)

    def _write(self, message: object) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except (OSError, ValueError):
            self._lose()

    def _read(self) -> None:
        try:
            number, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._lose()
            return
        self._replies += 1
        if isinstance(value, Reply):
            for stamp in value.stamps:
                self._pace = max(self._pace, (stamp.end - stamp.start) / 1e9 / max(1, stamp.rows))
        self._answer(number, value)

    def _take(self, number: int) -> Reply:
        while not self._owed[number][1].done():  # between runs no loop reads
            self._read()
        return super()._take(number)

    def _lose(self) -> None:
        self._stop_reading()
        if self._unanswered:
            self._fail(self._death())

    def _death(self) -> WorkerDied:
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=2)
        how = "closed its connection"
        if self._reason:
            how = f"{self._reason} and was killed"
        elif code is not None:
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
        return self._died(how)


def _start(setup: Setup, connection: socket.socket) -> subprocess.Popen[bytes] | ForkedProcess:
    # A fork of a process with threads or an initialised GPU would not work.
    forks = prepare() if setup.device.kind == "cpu" and setup.threads == 1 else None
    if forks is None:
        return start_process([], connection, worker_environment(setup.threads))
    with connection:
        return forks.fork(connection)
