"""What the header holds of clocks, and of the reservations of Ray's devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from engine.workers.ray.worker import RayWorker
from engine.workers.worker import Worker


def align(workers: Iterable[Worker], errors: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Compare the clocks of Ray's nodes with this process's; stamps are then shifted.

    Args:
        workers: The run's workers.
        errors: Error of each device's times on its own machine, in nanoseconds; 0 for CPU cores.

    Returns:
        `reserved`: the placement group and bundle of each device. `clocks`, by device: its node,
        the node's clock minus this one, and the most by which its times are wrong, in nanoseconds;
        left out if all workers are on this machine and read its clock. Empty without Ray, and
        without CUDA, whose streams have clocks of their own.

    Raises:
        WorkerDied: A worker ended.
    """
    found = {
        worker: device for worker in workers if isinstance(worker, RayWorker) for device in worker.devices
    }
    nodes = {worker.node.id: worker for worker in found}
    for worker in nodes.values():
        worker.align()
    reserved = {device.name: worker.reserved for worker, device in found.items()}
    clocks = {
        device.name: {
            "node": worker.node.name,
            "offset_ns": worker.node.clock.offset,
            "uncertainty_ns": worker.node.clock.uncertainty + errors.get(device.name, 0),
        }
        for worker, device in found.items()
        if not all(worker.node.own for worker in nodes.values())
    }
    streams = {name: {"uncertainty_ns": error} for name, error in errors.items() if error}
    clocks = streams | clocks
    return ({"clocks": clocks} if clocks else {}) | ({"reserved": reserved} if reserved else {})
