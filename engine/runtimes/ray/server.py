"""The worker's side of a Ray worker: an actor that takes jobs in order.

Ray starts the calls of an actor in the order in which they were sent, one after the other; calls of
the concurrency groups `control` and `beside` do not wait for a forward.

Large data (rows of q, KV rows, hidden states) stays in Ray's object store as the second value of a
reply; Ray moves it from node to node.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specscope.engine.errors import ModelError
from specscope.engine.runtimes.process import Setup
from specscope.engine.runtimes.ray.worker import Located, bytes_of, with_bytes, written_rows
from specscope.engine.worker.host import Host, outcome
from specscope.engine.worker.jobs import Connect, Drop, Job, Link, LoadModel, Reply

GROUPS = {"control": 1, "beside": 4}
"""Concurrency group -> threads: for control jobs, and for calls beside all jobs."""


class RayServer:
    """One device of a node, as the class of an actor; the node's name is for messages."""

    def __init__(self, setup: Setup, node: str) -> None:
        self._setup, self._node = setup, node
        self._host = Host(setup.name)
        self._stopped: set[int] = set()

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def stop(self, number: int) -> None:
        """Stop a job after its current forward; its reply is still returned."""
        self._stopped.add(number)

    def handle(self, number: int, job: Job, rows: Located, drops: Sequence[Drop], *data: np.ndarray) -> Any:
        """Do a job that came without its large data, after dropping scores.

        `rows` of q are in `data`, (N, V) float32; if a job needs bytes, the last array has them.

        Returns:
            The reply or its error, and the reply's large data or None. `...` in the reply is in
            place of bytes.
        """
        if torch.get_num_threads() != self._setup.threads:  # a setting of each thread
            torch.set_num_threads(self._setup.threads)
        for drop in drops:
            self._host.handle(drop)
        reply = outcome(lambda: self._do(number, job, rows, data))
        self._stopped.discard(number)
        if not isinstance(reply, Reply):
            return reply, None
        if isinstance(reply.value, bytes) and reply.value:
            return reply._replace(value=...), np.frombuffer(reply.value, dtype=np.uint8)
        own, written = self._host.q_buffers.get(self._setup.name), written_rows(job)
        # of the ranks of a split model, the first has the rows of q
        return reply, own[written] if written and own is not None else None

    def _do(self, number: int, job: Job, rows: Located, data: Sequence[np.ndarray]) -> Reply:
        for (name, row), array, index in rows:
            self._host.q_buffers[name][row] = data[array][index]
        if bytes_of(job) is ...:
            job = with_bytes(job, data[-1].tobytes())
        if isinstance(job, Connect):
            # a node has a copy of each row of q that it reads
            self._host.q_buffers = {n: np.zeros(shape, dtype=np.float32) for n, _, shape in job.q_buffers}
            return Reply(None, ())
        if isinstance(job, Link):
            return self._link(job)
        try:
            return self._host.handle(job, lambda: number in self._stopped)
        except ModelError as error:
            where = f"{self._node} cannot load a model: " if isinstance(job, LoadModel) and self._node else ""
            raise ModelError(f"{where}{error}") from error

    def _link(self, job: Link) -> Reply:
        """Meet the other ranks, which are on this node, at a file whose name only they know."""
        meeting = Path(tempfile.gettempdir()) / f"specscope-{sha256(job.path.encode()).hexdigest()}"
        try:
            return self._host.handle(replace(job, path=str(meeting)))
        finally:
            meeting.unlink(missing_ok=True)
