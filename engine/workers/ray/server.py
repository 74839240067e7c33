"""The worker's side of a Ray worker: an actor whose event loop takes jobs; one thread computes.

Ray may deliver an actor's calls in any order, because a call waits for its data. So calls are
numbered, and each waits for its turn.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.environment import release
from engine.errors import ModelError, SpecScopeError
from engine.workers.host import Host
from engine.workers.jobs import CONTROL, Connect, Drop, Job, Link, Load, Reply
from engine.workers.ray.parcels import Packed, split_reply, unpack
from engine.workers.transports.process import Setup, Wire


class RayServer:
    """One device of a node, as the class of an actor.

    Args:
        setup: The worker's name, device and threads.
        node: The node's name, for messages.
    """

    def __init__(self, setup: Setup, node: str) -> None:
        torch.set_num_threads(setup.threads)
        if setup.device.kind == "cuda":
            torch.cuda.set_device(0)  # Ray shows an actor only its own GPU
        self._name, self._node = setup.name, node
        self._host = Host(setup.name)
        self._wire = Wire()
        self._slabs: dict[str, np.ndarray] = {}
        self._stopped: set[int] = set()
        self._turn = 0
        self._early: dict[int, asyncio.Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, initializer=partial(torch.set_num_threads, setup.threads))

    async def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def release(self) -> str:
        """Return the version of SpecScope on this node."""
        return release("specscope")

    async def now(self) -> int:
        """Return this node's clock, in nanoseconds."""
        return time.perf_counter_ns()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread of its own, beside the jobs."""
        return await asyncio.to_thread(function)

    async def stop(self, number: int) -> None:
        """Stop a job after its current forward; its reply is still returned."""
        self._stopped.add(number)

    async def handle(self, number: int, packed: Packed, drops: tuple[Drop, ...], *data: Any) -> Any:
        """Do a job when all earlier calls have started.

        Returns:
            The reply or its error, and the reply's large data or None.
        """
        if number != self._turn:
            await self._early.setdefault(number, asyncio.get_running_loop().create_future())
        try:
            work = self._start(number, packed, drops, data)
        finally:
            self._early.pop(number, None)
            self._turn += 1
            if (following := self._early.get(self._turn)) is not None:
                following.set_result(None)
        return await work if isinstance(work, asyncio.Future) else work

    def _start(self, number: int, packed: Packed, drops: tuple[Drop, ...], data: tuple[Any, ...]) -> Any:
        """Return a control job's answer; start any other job and return its answer's future."""
        for drop in drops:
            self._host.handle(drop)
        job = self._wire.unpack(unpack(packed, self._slabs, data))
        if isinstance(job, CONTROL) and self._host.ready(job):
            return self._answer(number, job)
        return asyncio.get_running_loop().run_in_executor(self._thread, self._answer, number, job)

    def _answer(self, number: int, job: Job) -> tuple[Reply | BaseException, np.ndarray | None]:
        try:
            reply = self._do(job, number)
            return split_reply(job, reply, self._slabs.get(self._name))
        except SpecScopeError as error:
            return error, None
        except Exception as error:  # noqa: BLE001 - it ends the run, not the worker
            value = SpecScopeError(" ".join(f"{type(error).__name__}: {error}".split()))
            value.add_note(traceback.format_exc())  # the message stays one line
            return value, None
        finally:
            self._stopped.discard(number)

    def _link(self, job: Link) -> Reply:
        """Meet the other ranks, which are on this node, at a file whose name only they know."""
        meeting = Path(tempfile.gettempdir()) / f"specscope-{sha256(job.path.encode()).hexdigest()}"
        try:
            return self._host.handle(replace(job, path=str(meeting)))
        finally:
            meeting.unlink(missing_ok=True)

    def _do(self, job: Job, number: int) -> Reply:
        if isinstance(job, Connect):  # a node has its own copy of each row that it reads
            self._slabs = {name: np.zeros(shape, dtype=np.float32) for name, _, shape in job.slabs}
            self._host.connect(self._slabs)
            return Reply(None, ())
        if isinstance(job, Link):
            return self._link(job)
        try:
            return self._host.handle(job, lambda: number in self._stopped)
        except ModelError as error:
            where = f"{self._node} cannot load a model: " if isinstance(job, Load) and self._node else ""
            raise ModelError(f"{where}{error}") from error
