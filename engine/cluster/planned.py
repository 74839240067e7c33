"""The devices of a plan: this machine's, or GPUs that are not here and whose memory is named."""

from __future__ import annotations

import psutil

from specscope.engine.cluster.local_devices import devices_of
from specscope.engine.cluster.memory import parse_sizes
from specscope.engine.errors import UsageError, shown
from specscope.engine.trace.events import Device


def planned_devices(device: str, memory: str) -> tuple[Device, ...]:
    """Return the devices that a plan is for; `device` and `memory` are the options of a run.

    They are this machine's if it can have such limits. Otherwise they are GPUs of those sizes, as
    many as are named; a run with the same options is refused.

    Raises:
        UsageError: The kind of device is unknown, or no memory of a GPU that is not here is named.
    """
    sizes = parse_sizes(memory)
    if device == "cuda" and not _gpus():
        if not sizes:
            raise UsageError(
                "device is cuda, but this machine has no CUDA device; to plan for GPUs that are not here, name their "
                "memory, as in --memory 0=24GB,1=12GB"
            )
        return _absent(sizes, memory)
    here = devices_of(device)
    on_cpu = here[0].kind == "cpu"
    if device != "cpu" and (
        max(sizes, default=0) >= len(here) or (on_cpu and sum(sizes.values()) > psutil.virtual_memory().total)
    ):
        return _absent(sizes, memory)
    return here


def _absent(sizes: dict[int, int], memory: str) -> tuple[Device, ...]:
    if missing := sorted({*range(len(sizes))} - {*sizes}):
        raise UsageError(
            f"memory is {shown(memory)}; GPU {missing[0]} is not here: name its memory too, as in 0=24GB,1=12GB"
        )
    return tuple(Device(f"cuda:{i}", "", f"GPU {i} (not here)", "cuda") for i in range(len(sizes)))


def _gpus() -> bool:
    return any(device.kind == "cuda" for device in devices_of("auto"))
