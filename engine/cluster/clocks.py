"""What the header holds of Ray's nodes: their clocks, and the reservations of devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.workers.ray.worker import RayWorker
from engine.workers.worker import Worker


def align(workers: Iterable[Worker]) -> dict[str, dict[str, Any]]:
    """Compare the clocks of Ray's nodes with this process's; stamps are then shifted.

    Returns:
        `reserved`: the placement group and bundle of each device. `clocks`, by device: its node,
        the node's clock minus this one, and the most by which that is wrong, in nanoseconds; left
        out if all workers are on this machine and read its clock. Empty without Ray.

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
            "uncertainty_ns": worker.node.clock.uncertainty,
        }
        for worker, device in found.items()
    }
    alone = all(worker.node.own for worker in nodes.values())
    return ({} if alone else {"clocks": clocks}) | ({"reserved": reserved} if reserved else {})
