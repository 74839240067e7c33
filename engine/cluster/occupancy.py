"""Load, memory and power of devices during a run, sampled ten times a second.

On a CPU, psutil gives the ticks in which the core was busy with any process, and the resident
memory of the worker's process. On an NVIDIA GPU, NVML gives the share of its last sampling
period in which a kernel ran, the memory in use on the whole card, and its power. These values
include other programs. Occupancy by the run alone is computed from the trace's spans and is never
mixed with them.

A tick is 10 ms on Linux, so a sample of 100 ms has the load to about 10 %; means over a run are
more precise.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import psutil

from specscope.engine.trace.events import Device, Occupancy
from specscope.engine.trace.load import ProcessorTime, others_row, used_by_others

EVERY_S = 0.1
"""Seconds between two samples: about NVML's averaging period, and ten ticks of a core."""


class Reading(NamedTuple):
    """One device at one moment."""

    device: str
    busy: float
    memory: int
    power: float | None


class Meter(Protocol):
    """Reads the devices of one kind; only the sampling thread uses it."""

    def read(self) -> Iterator[Reading]: ...

    def close(self) -> None: ...


class Sampler:
    """Samples devices in a daemon thread until it is stopped.

    A device that cannot be read (no driver, a GPU without counters, an ended worker) is left out;
    the run gets no error. Virtual devices have no samples.

    Args:
        devices: The run's devices, named `cpu:N` or `cuda:N`; a suffix after a slash is ignored.
        emit: Takes each sample **in the sampling thread**. An error ends the sampling.
        clock: Nanoseconds since the run's start.
        every_s: Seconds between two samples.
        pids: Process id of each device's worker by the device's name; this process by default.
        meters: Meters by the kind of device; `METERS` by default.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        emit: Callable[[Occupancy], None],
        clock: Callable[[], int],
        every_s: float = EVERY_S,
        pids: Mapping[str, int] | None = None,
        meters: Mapping[str, Callable[..., Meter]] | None = None,
    ) -> None:
        self._devices, self._pids = devices, dict(pids or {})
        self._emit, self._clock, self._every = emit, clock, every_s
        self._kinds = METERS if meters is None else meters
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and any(device.kind in self._kinds for device in self._devices):
            self._thread = threading.Thread(target=self._run, name="occupancy", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling, and wait for the thread at most a second; then no sample is emitted."""
        self._ending.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=1)

    def _run(self) -> None:
        meters = list(self._meters())
        with contextlib.suppress(Exception):  # measuring must never end a run
            while meters and not self._ending.wait(self._every):
                for meter in meters:
                    self._sample(meter)
        for meter in meters:
            meter.close()

    def _meters(self) -> Iterator[Meter]:
        for kind, make in self._kinds.items():
            if devices := [device for device in self._devices if device.kind == kind]:
                with contextlib.suppress(Exception):  # a machine without the driver or its library
                    yield make(devices, self._pids)

    def _sample(self, meter: Meter) -> None:
        for device, busy, memory, power in meter.read():
            if self._ending.is_set():
                return
            self._emit(Occupancy(device, self._clock(), min(1.0, max(0.0, busy)), memory, power))


class Cores:
    """CPU cores, through psutil: each core's load, and its worker's resident bytes."""

    def __init__(self, devices: Sequence[Device], pids: Mapping[str, int]) -> None:
        self._processes: dict[Device, psutil.Process] = {}
        for device in devices:
            with contextlib.suppress(psutil.Error):
                self._processes[device] = psutil.Process(pids.get(device.name, os.getpid()))
        psutil.cpu_percent(percpu=True)  # the first call only starts the measurement

    def read(self) -> Iterator[Reading]:
        loads: list[float] = psutil.cpu_percent(percpu=True)
        for device, process in list(self._processes.items()):
            try:
                yield Reading(device.name, loads[_number(device)] / 100, process.memory_info().rss, None)
            except (psutil.Error, IndexError):
                del self._processes[device]

    def close(self) -> None: ...


class Cards:
    """NVIDIA GPUs, through NVML: each card's load, memory in use, and power in watts."""

    def __init__(self, devices: Sequence[Device], _: Mapping[str, int]) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._nvml.nvmlInit()
        self._handles: dict[str, Any] = {}
        for device in devices:
            with contextlib.suppress(Exception):  # one GPU without counters must not hide the others
                self._handles[device.name] = self._nvml.nvmlDeviceGetHandleByUUID(_uuid(_number(device)))

    def read(self) -> Iterator[Reading]:
        nvml = self._nvml
        for name, handle in list(self._handles.items()):
            try:
                busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
                memory = nvml.nvmlDeviceGetMemoryInfo(handle).used
                yield Reading(name, busy, int(memory), self._power(handle))
            except nvml.NVMLError:
                del self._handles[name]

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _power(self, handle: Any) -> float | None:
        try:
            return self._nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        except self._nvml.NVMLError:
            return None  # some cards have no power sensor


METERS: dict[str, Callable[[Sequence[Device], Mapping[str, int]], Meter]] = {"cpu": Cores, "cuda": Cards}


def _number(device: Device) -> int:
    return int(device.name.split("/")[0].partition(":")[2])


def _uuid(index: int) -> str:
    """Return a GPU's name in NVML: PyTorch numbers only the GPUs that this process may use."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def processor_time(processes: Iterable[psutil.Process]) -> ProcessorTime:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # also in user and nice
    seconds: dict[int, float] = {}
    for process in processes:
        try:
            used = process.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        seconds[process.pid] = used.user + used.system
    return ProcessorTime(time.perf_counter(), sum(times) - idle - guest, seconds)


class OtherPrograms:
    """The load of the machine by other programs during a run, whose workers have these ids."""

    def __init__(self, workers: Iterable[int]) -> None:
        self._processes = [psutil.Process()]
        for pid in workers:
            try:
                self._processes.append(psutil.Process(pid))
            except psutil.Error:  # a dead worker ends the run with its own error
                continue
        self._before = processor_time(self._processes)

    def cores(self) -> float:
        return used_by_others(self._before, processor_time(self._processes)) or 0.0

    def row(self, at: int) -> Occupancy | None:
        """Return the load until `at` (ns since the run's start) as a row; None for a short run."""
        return others_row(self._before, processor_time(self._processes), at)


def read_own(kind: str) -> Reading | None:
    """Return a reading of the device of this process, a worker on a Ray node; since the last call.

    Workers import this module at their first reading, during a run: it imports no model's code.
    """
    meter = _own_meter(kind)
    if isinstance(meter, psutil.Process):
        load: float = meter.cpu_percent()
        return Reading("", load / 100, meter.memory_info().rss, None)
    reading = next(meter.read(), None)
    if reading is None:  # NVML lost the card; the next reading looks for it again
        _own_meter.cache_clear()
    return reading


@cache
def _own_meter(kind: str) -> Meter | psutil.Process:
    own = Device("cuda:0", "", "", "cuda")  # Ray shows a worker only its own GPU
    return METERS["cuda"]([own], {}) if kind == "cuda" else psutil.Process()
