"""Load and memory of Ray's devices: each worker samples its own, the run fetches the samples.

A node does not say which core a worker uses, so on a CPU the load is that of the worker's own
process. On a GPU it is the card's, as on this machine; that has never run on a GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from engine.cluster.occupancy import METERS, Meter, Reading, Sampler
from engine.trace.events import Device, Occupancy
from engine.workers.ray.worker import RayWorker

FETCH_S = 1.0
"""Seconds between two fetches, and the longest wait for one."""
_samplers: dict[str, tuple[Sampler, list[Occupancy]]] = {}
"""On a worker: its sampler while a run goes on, and the samples that were not fetched yet."""


class OwnProcess:
    """The process of a worker on a CPU, through psutil."""

    def __init__(self, devices: Sequence[Device], pids: Mapping[str, int], trouble: list[str]) -> None:  # noqa: ARG002
        import psutil

        self._names = [device.name for device in devices]
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only starts the measurement

    def read(self) -> Iterator[Reading]:
        """Yield the share of one core since the last call, and resident bytes."""
        load: float = self._process.cpu_percent()
        for name in self._names:
            yield Reading(name, load / 100, self._process.memory_info().rss, None)

    def close(self) -> None:
        """Do nothing: no resources are held."""


def begin(kind: str) -> None:
    """Start to sample this worker's device; the times are this node's clock."""
    end()
    rows = list[Occupancy]()
    meters: Mapping[str, Callable[..., Meter]] = {**METERS, "cpu": OwnProcess}
    device = Device(f"{kind}:0", "", "", kind)  # Ray shows a worker only its own GPU
    sampler = Sampler([device], rows.append, time.perf_counter_ns, meters=meters)
    _samplers["own"] = sampler, rows
    sampler.start()


def take() -> list[Occupancy]:
    """Return the samples since the last call."""
    if "own" not in _samplers:
        return []
    rows = _samplers["own"][1]
    return [rows.pop(0) for _ in range(len(rows))]


def end() -> list[Occupancy]:
    """Stop sampling and return the last samples."""
    if "own" in _samplers:
        _samplers["own"][0].stop()
    rows = take()
    _samplers.clear()
    return rows


class NodeSampler:
    """Samples of a run's Ray workers, aligned with this process's clock.

    Args:
        workers: The run's workers.
        emit: Takes each sample, in another thread until `stop`.
        clock: Nanoseconds since the run's start.
    """

    def __init__(
        self, workers: Sequence[RayWorker], emit: Callable[[Occupancy], None], clock: Callable[[], int]
    ) -> None:
        self._workers, self._emit, self._clock = workers, emit, clock
        self._origin = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._fetch_often, name="samples of nodes", daemon=True)

    def start(self) -> None:
        """Start sampling on the nodes."""
        self._origin = time.perf_counter_ns() - self._clock()
        for worker in self._workers:
            worker.ask(partial(begin, worker.devices[0].kind))
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling and emit what is left; waits for a second at most."""
        self._ending.set()
        self._thread.join()
        self._fetch(end)

    def _fetch_often(self) -> None:
        while not self._ending.wait(FETCH_S):
            self._fetch(take)

    def _fetch(self, function: Callable[[], list[Occupancy]]) -> None:
        """Emit what a function returns on the workers; a dead one fails the run elsewhere."""
        asked: list[tuple[RayWorker, Future[Any]]] = [(w, w.ask(function)) for w in self._workers]
        deadline = time.monotonic() + FETCH_S
        for worker, answer in asked:
            try:
                rows: list[Occupancy] = answer.result(timeout=max(0.0, deadline - time.monotonic()))
            except Exception:  # noqa: BLE001 - measuring must never end a run
                continue
            for row in rows:
                moment = row.time - worker.node.clock.offset - self._origin
                if moment >= 0:
                    self._emit(replace(row, device=worker.devices[0].name, time=moment))
