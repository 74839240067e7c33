"""The worker's side of a Ray worker: an actor that takes jobs in order.

Ray starts the calls of an actor in the order in which they were sent, one after the other; calls of
the concurrency groups `control` and `beside` do not wait for a forward.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.errors import ModelError, SpecScopeError
from engine.runtimes.process import Setup
from engine.runtimes.ray.references import Packed, split_reply, unpack
from engine.worker.host import Host
from engine.worker.jobs import Connect, Drop, Job, Link, Load, Reply

GROUPS = {"control": 1, "beside": 4}
"""Concurrency group -> threads: for control jobs, and for calls beside all jobs."""


class RayServer:
    """One device of a node, as the class of an actor.

    Args:
        setup: The worker's name, device and threads.
        node: The node's name, for messages.
    """

    def __init__(self, setup: Setup, node: str) -> None:
        self._setup, self._node = setup, node
        self._host = Host(setup.name)
        self._slabs: dict[str, np.ndarray] = {}
        self._stopped: set[int] = set()

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def stop(self, number: int) -> None:
        """Stop a job after its current forward; its reply is still returned."""
        self._stopped.add(number)

    def handle(self, number: int, packed: Packed, drops: tuple[Drop, ...], *data: np.ndarray) -> Any:
        """Do a job.

        Returns:
            The reply or its error, and the reply's large data or None.
        """
        if torch.get_num_threads() != self._setup.threads:  # a setting of each thread
            torch.set_num_threads(self._setup.threads)
        for drop in drops:
            self._host.handle(drop)
        try:
            job = unpack(packed, self._slabs, data)
            return split_reply(job, self._do(job, number), self._slabs.get(self._setup.name))
        except SpecScopeError as error:
            return error, None
        except Exception as error:  # noqa: BLE001 - it ends the run, not the worker
            value = SpecScopeError(" ".join(f"{type(error).__name__}: {error}".split()))
            value.add_note(traceback.format_exc())  # the message stays one line
            return value, None
        finally:
            self._stopped.discard(number)

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

    def _link(self, job: Link) -> Reply:
        """Meet the other ranks, which are on this node, at a file whose name only they know."""
        meeting = Path(tempfile.gettempdir()) / f"specscope-{sha256(job.path.encode()).hexdigest()}"
        try:
            return self._host.handle(replace(job, path=str(meeting)))
        finally:
            meeting.unlink(missing_ok=True)
