"""Local processes: one worker process per device; on a CPU one pinned core and one intra-op thread each.

The wire is a socket pair with pickled tuples. Prefixes travel as (length kept, new ids): both ends remember the last
prefix of each sequence. q never travels: judges read it from the slab. A worker that dies ends its jobs with
`WorkerDied`, which names the device.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import WorkerDied
from engine.runtime.events import Device
from engine.runtime.jobs import Connect, Drop, Job, Join, Load, Reply
from engine.runtime.worker import Ticket
from engine.types import Prefix


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker process needs to know first."""

    name: str
    device: Device
    threads: int
    core: int | None
    """CPU core to stay on; None leaves it to the system."""


class Wire:
    """Shortens prefixes to what is new; one at each end, fed in the same order."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], np.ndarray] = {}

    def pack(self, job: Any) -> Any:
        """Return the job with each prefix as (sequence, kept, new ids)."""
        prefixes = getattr(job, "prefixes", None)
        return (
            job
            if prefixes is None
            else replace(job, prefixes=tuple(map(partial(self._pack, job.model), prefixes)))
        )

    def unpack(self, job: Any) -> Any:
        """Undo `pack`."""
        packed = getattr(job, "prefixes", None)
        return (
            job
            if packed is None
            else replace(job, prefixes=tuple(map(partial(self._unpack, job.model), packed)))
        )

    def _pack(self, model: str, prefix: Prefix) -> tuple[int, int, bytes]:
        known = self._known.get((model, prefix.sequence), _NOTHING)
        n = min(len(known), len(prefix))
        differs = np.flatnonzero(known[:n] != prefix.tokens[:n])
        kept = int(differs[0]) if differs.size else n
        self._known[model, prefix.sequence] = prefix.tokens
        return prefix.sequence, kept, prefix.tokens[kept:].tobytes()

    def _unpack(self, model: str, packed: tuple[int, int, bytes]) -> Prefix:
        sequence, kept, new = packed
        known = self._known.get((model, sequence), _NOTHING)
        tokens = np.concatenate([known[:kept], np.frombuffer(new, dtype=np.int64)])
        self._known[model, sequence] = tokens
        return Prefix(sequence, tokens)


_NOTHING = np.empty(0, dtype=np.int64)


class ProcessWorker:
    """A device served by a process of its own."""

    def __init__(self, setup: Setup) -> None:
        self.name = setup.name
        self.devices = (setup.device,)
        here, there = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.runtime.serve", str(there.fileno())],
            pass_fds=(there.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(setup.threads)},
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the run first, which stops its workers in order
        )
        there.close()
        self._connection = Connection(here.detach())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wire = Wire()
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._next = 0
        self._dropped: list[Drop] = []
        self._send(setup)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def prepare(self, job: Load | Connect | Join) -> Callable[[], Reply]:
        """Start a job outside of runs and return how to wait for it."""
        self._next += 1
        self._send((self._next, job))
        return self._receive

    def _receive(self) -> Reply:
        try:
            _, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._death() from None
        if isinstance(value, BaseException):
            raise value
        return value

    def lanes(self, model: str) -> int:  # noqa: ARG002 - it has one device
        """Return 1."""
        return 1

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve runs of this event loop from now on."""
        self._loop = loop
        loop.add_reader(self._connection.fileno(), self._read)

    def detach(self) -> None:
        """Stop serving the loop."""
        if self._loop is not None and not self._connection.closed:
            self._loop.remove_reader(self._connection.fileno())
        self._loop = None

    def submit(self, job: Job) -> Ticket:
        """Send a job to the worker; what it may forget goes along with the next one."""
        assert self._loop is not None, "submit needs an attached loop"
        self._next += 1
        number, reply = self._next, self._loop.create_future()
        if isinstance(job, Drop):
            self._dropped.append(job)
            return Ticket(reply, lambda: None)
        self._waiting[number] = reply
        dropped, self._dropped = self._dropped, []
        self._send((number, self._wire.pack(job), *dropped))
        return Ticket(reply, lambda: self._send((number, None)))

    def close(self) -> None:
        """End the process; kill it when it does not go by itself."""
        self._connection.close()
        try:
            self._process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except (OSError, ValueError):
            self._fail()

    def _read(self) -> None:
        try:
            number, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            self._fail()
            return
        reply = self._waiting.pop(number)
        if isinstance(value, BaseException):
            reply.set_exception(value)
        else:
            reply.set_result(value)

    def _fail(self) -> None:
        if self._loop is not None and not self._connection.closed:
            self._loop.remove_reader(self._connection.fileno())
        waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        death = self._death()
        for reply in waiting.values():
            reply.set_exception(death)

    def _death(self) -> WorkerDied:
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=2)
        how = "closed its connection"
        if code is not None:
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
        return WorkerDied(
            f"the worker on {self.devices[0].label} (process {self._process.pid}) {how}; start the run again"
        )
