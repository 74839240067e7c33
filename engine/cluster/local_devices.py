"""This machine as a device pool: its GPUs, or its CPU cores; and the devices that a plan is for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import psutil
import torch

from specscope.engine.checkpoints.loader import load
from specscope.engine.checkpoints.pair import Pair
from specscope.engine.cluster.assignment import Assignment, Loader
from specscope.engine.cluster.memory import Memory, parse_sizes
from specscope.engine.cluster.options import Options
from specscope.engine.cluster.pool import Pool
from specscope.engine.errors import UsageError, shown
from specscope.engine.runtimes.process import ProcessWorker, Setup
from specscope.engine.runtimes.thread import ThreadWorker
from specscope.engine.trace.events import Device
from specscope.engine.worker.worker import Worker


@dataclass(frozen=True)
class Machine:
    """This machine: a worker is a process, or a thread of this one."""

    pair: Pair
    options: Options
    devices: tuple[Device, ...]
    where = "this machine has"

    def reserve(self, assigned: Mapping[str, Sequence[Assignment]]) -> None:
        """Do nothing: the operating system shares devices out."""

    def start(self, assignment: Assignment) -> Worker:
        device, threads = assignment.devices[0], self.options.threads
        if self.options.runtime == "local-thread":
            torch.set_num_threads(threads)
            return ThreadWorker(assignment.name, device, threads)
        pinned = device.kind == "cpu" and threads == 1
        core = int(device.name.split("/")[0].partition(":")[2]) if pinned else None
        return ProcessWorker(Setup(assignment.name, device, threads, core))

    def loader(self, model: str, assignment: Assignment) -> Loader:
        return loader_of(self.pair, model, assignment.devices[0], self.options)

    def close(self) -> None: ...


def local_devices(
    pair: Pair,
    options: Options,
    devices: tuple[Device, ...],
    spans: tuple[range, ...] = (),
    memory: Memory | None = None,
) -> Pool:
    """Return devices of this machine as a pool; a target that is split by layers runs eagerly."""
    options = replace(options, forward="eager") if spans else options
    stages = {"stages": [len(span) for span in spans]} if spans else {}
    details = options.facts(devices[0]) | stages
    widths = options.tp, options.drafter_tp, len(pair.drafter_paths)
    site = Machine(pair, options, devices)
    return Pool(pair, options, site, *widths, spans, memory=memory or Memory(), details=details)


def devices_of(device: str) -> tuple[Device, ...]:
    """Return this machine's devices of a kind (UsageError: it has none); `auto` prefers GPUs."""
    gpus = torch.cuda.device_count()
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"there is no device {device!r}; choose auto, cpu or cuda")
    if device == "cuda" and not gpus:
        raise UsageError("device is cuda, but this machine has no CUDA device; use cpu")
    if device != "cpu" and gpus:
        names = [torch.cuda.get_device_name(i).removeprefix("NVIDIA ") for i in range(gpus)]
        return tuple(Device(f"cuda:{i}", "", f"GPU {i} ({name})", "cuda") for i, name in enumerate(names))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return tuple(Device(f"cpu:{i}", "", f"CPU core {i}", "cpu") for i in sorted(allowed))


def planned_devices(device: str, memory: str) -> tuple[Device, ...]:
    """Return the devices that a plan is for; `device` and `memory` are the options of a run.

    They are this machine's if it can have such limits. Otherwise they are GPUs of those sizes, as
    many as are named; a run with the same options is refused.

    Raises:
        UsageError: The kind of device is unknown, or no memory of a GPU that is not here is named.
    """
    sizes = parse_sizes(memory)
    if device == "cuda" and devices_of("auto")[0].kind != "cuda":
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


def loader_of(pair: Pair, model: str, device: Device, options: Options, place: str = "") -> Loader:
    """Return a function that loads a model of a pair; `place` is torch's name of the device."""
    return partial(
        load,
        str(pair.models[model]),
        device=place or (device.name.split("/")[0] if device.kind == "cuda" else "cpu"),
        dtype=options.dtype_on(device),
        name=model,
        forward=options.forward_on(device),
    )
