"""Real worker processes whose scripted model misbehaves as the prompt's first token says."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np

from engine.cluster.local_devices import LocalDevices, devices_of
from engine.cluster.placement import Placement
from engine.cluster.session import Cluster
from engine.cluster.site import Assignment, Loader
from engine.model.pair import Pair
from engine.simulate.oracle import Scripted
from engine.types import Layout
from engine.workers.transports.process import ProcessWorker

AFTER = 20
"""Tokens that the model says before it misbehaves."""


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
    """Return the token ids of a prompt at which the model does this."""
    return [ACTS.index(act), 5, 6]


def _say(tokens: np.ndarray, sequence: int) -> int:
    if len(tokens) > AFTER:
        ACTS[tokens[0]]()
    return 7


def _load(ballast: bytes) -> Scripted:
    return Scripted("target", _say, vocab_size=64)


@dataclass(frozen=True)
class Odd(LocalDevices):
    """This machine with the scripted model; `stopped` workers get SIGSTOP right after their start."""

    stopped: bool = False
    ballast: bytes = b""
    """Bytes that travel with the job that loads the model."""

    def start_worker(self, seat: Assignment) -> ProcessWorker:
        worker = super().start_worker(seat)
        assert isinstance(worker, ProcessWorker)
        if self.stopped:
            os.kill(worker.pid, signal.SIGSTOP)
        return worker

    def loader(self, model: str, seat: Assignment) -> Loader:
        return partial(_load, self.ballast)


def odd_cluster(stopped: bool = False, ballast: bytes = b"") -> Cluster:
    """Open a cluster with one worker."""
    pair = Pair.find("bundled")
    site = Odd(pair, "local-process", devices_of("cpu"), 1, stopped, ballast)
    return Cluster(pair, Placement("local-process", site, Layout(drafters=0)))


def pid_of(cluster: Cluster) -> int:
    """Return the process id of the cluster's one worker."""
    (worker,) = cluster.placement.workers
    assert isinstance(worker, ProcessWorker)
    return worker.pid
