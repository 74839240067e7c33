"""Real worker processes whose scripted model misbehaves; the prompt's first token selects how."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

import numpy as np

from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.assignment import Assignment, Loader
from specscope.engine.cluster.local_devices import Machine, devices_of, local_devices
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.placement import Placement
from specscope.engine.cluster.session import Cluster
from specscope.engine.layout import Layout, Separate
from specscope.engine.runtimes.process import ProcessWorker
from specscope.engine.simulate.oracle import Scripted

AFTER = 20
"""Length of the text at which the model misbehaves."""


def sleep() -> None:
    threading.Event().wait()


def spin() -> None:
    while True:
        pass


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def fail() -> NoReturn:
    raise ValueError("the first line\nand the second one")


def behave() -> None:
    pass


ACTS: tuple[Callable[[], None], ...] = (behave, sleep, spin, crash, fail)


def prompt(act: Callable[[], None]) -> list[int]:
    """Return the token ids of a prompt that makes the model call `act`."""
    return [ACTS.index(act), 5, 6]


def _next_token(tokens: np.ndarray, sequence: int) -> int:
    if len(tokens) > AFTER:
        ACTS[tokens[0]]()
    return 7


def _load(ballast: bytes) -> Scripted:
    return Scripted("target", _next_token, vocab_size=64)


@dataclass(frozen=True)
class Odd(Machine):
    """This machine with the scripted model; `stopped` workers get SIGSTOP after their start."""

    stopped: bool = False
    ballast: bytes = b""
    """Bytes sent with the job that loads the model."""

    def start(self, assignment: Assignment) -> ProcessWorker:
        worker = super().start(assignment)
        assert isinstance(worker, ProcessWorker)
        if self.stopped:
            os.kill(worker.pid, signal.SIGSTOP)
        return worker

    def loader(self, model: str, assignment: Assignment) -> Loader:
        return partial(_load, self.ballast)


def odd_cluster(stopped: bool = False, ballast: bytes = b"") -> Cluster:
    """Open a cluster with one worker."""
    pair = Pair.find("bundled")
    site = Odd(pair, Options(), devices_of("cpu"), stopped, ballast)
    pool = replace(local_devices(pair, Options(), site.devices), site=site)
    return Cluster(pair, Placement(pool, Layout(Separate(drafters=0))))


def pid_of(cluster: Cluster) -> int:
    """Return the process id of the cluster's one worker."""
    (worker,) = cluster.placement.workers
    assert isinstance(worker, ProcessWorker)
    return worker.pid
