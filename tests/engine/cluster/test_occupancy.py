"""Occupancy samples of real cores and of cards of a fake NVML, and devices that cannot be read."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from engine.cluster import occupancy
from engine.cluster.occupancy import Sampler
from engine.errors import UsageError
from engine.trace.events import Device, Occupancy

CORE = min(os.sched_getaffinity(0))
CPU = Device(f"cpu:{CORE}", "target", "CPU core", "cpu")


def collect(devices, count: int, **settings) -> tuple[list[Occupancy], Sampler]:
    """Sample until `count` rows, or for count 0 until trouble; return the rows and the sampler."""
    rows: list[Occupancy] = []
    start = time.perf_counter_ns()
    sampler = Sampler(devices, rows.append, lambda: time.perf_counter_ns() - start, **settings)
    with sampler:
        wait_for(lambda: len(rows) >= count if count else sampler.trouble)
    return rows, sampler


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def test_a_core_is_sampled_at_its_rate_with_this_process_memory():
    rows, sampler = collect([CPU], 3, every_s=0.1)
    assert sampler.trouble == []
    assert {row.device for row in rows} == {CPU.name}
    times = [0, *(row.time for row in rows)]
    assert all(later - earlier > 90_000_000 for earlier, later in itertools.pairwise(times))
    assert all(0 <= row.busy <= 1 and row.power is None for row in rows)
    assert all(0.5 < row.memory / psutil.Process().memory_info().rss < 2 for row in rows)


def test_a_spinning_core_is_busy():
    code = f"import os\nos.sched_setaffinity(0, {{{CORE}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as spinning:
        try:
            assert spinning.stdout is not None
            spinning.stdout.readline()
            rows, _ = collect([CPU], 3, pids={CPU.name: spinning.pid})
        finally:
            spinning.kill()
    assert max(row.busy for row in rows) > 0.8
    # the memory is the worker's: a bare interpreter, not this process with torch in it
    assert all(0 < row.memory < 100 * 2**20 for row in rows)


def test_a_worker_that_ends_loses_its_samples_and_the_others_stay():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        gone = Device(f"cpu:{CORE}/drafter", "drafter", "CPU core", "cpu")
        rows: list[Occupancy] = []
        with Sampler([gone, CPU], rows.append, lambda: 0, 0.02, {gone.name: worker.pid}) as sampler:
            wait_for(lambda: any(row.device == gone.name for row in rows))
            worker.kill()
            worker.wait()
            wait_for(lambda: sampler.trouble)
            count = len(rows)
            wait_for(lambda: len(rows) > count + 2)
    assert sampler.trouble[0].startswith(f"{gone.name}: NoSuchProcess")
    assert {row.device for row in rows[count + 1 :]} == {CPU.name}


def test_a_missing_core_is_trouble_not_an_error():
    rows, sampler = collect([Device("cpu:4096", "target", "", "cpu"), CPU], 1, every_s=0.02)
    assert {row.device for row in rows} == {CPU.name}
    assert "cpu:4096: LookupError: there is no core 4096" in sampler.trouble[0]


def test_virtual_devices_have_no_samples():
    before = threading.active_count()
    sampler = Sampler([Device("gpu0", "target", "GPU 0", "virtual")], pytest.fail, lambda: 0)
    sampler.start()
    assert threading.active_count() == before
    sampler.stop()


def test_stop_is_quick_and_final():
    rows: list[Occupancy] = []
    sampler = Sampler([CPU], rows.append, lambda: 0, every_s=30)
    sampler.start()
    start = time.monotonic()
    sampler.stop()
    assert time.monotonic() - start < 15, "it does not wait for the next sample"
    assert rows == []
    sampler.stop()  # a second time is harmless


def test_an_error_of_emit_ends_only_the_sampling():
    def refuse(_: Occupancy) -> None:
        raise OSError("disk full")

    sampler = Sampler([CPU], refuse, lambda: 0, 0.01)
    sampler.start()
    wait_for(lambda: sampler.trouble)
    sampler.stop()
    assert sampler.trouble == ["OSError: disk full"]


def test_emit_may_stop_the_sampler():
    sampler = Sampler([CPU], lambda _: sampler.stop(), lambda: 0, 0.01)
    sampler.start()
    wait_for(lambda: not any(t.name == "occupancy" for t in threading.enumerate()))


def test_an_interval_below_the_range():
    with pytest.raises(UsageError, match=r"every_s is 0; it must be at least 0\.01"):
        Sampler([CPU], print, lambda: 0, 0)


class Nvml(ModuleType):
    """The part of NVML that is used, with two cards; the second has no power sensor."""

    class NVMLError(Exception):
        """As pynvml names it."""

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open, self.lost = 0, False

    def nvmlInit(self):  # noqa: N802
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid == "GPU-x7":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        if self.lost:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(gpu={"GPU-x0": 37, "GPU-x1": 100}[handle], memory=12)

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=3 * 2**30, total=80 * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        if handle == "GPU-x1":
            raise self.NVMLError("Not Supported")
        return 251_500


@pytest.fixture
def nvml(monkeypatch):
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(occupancy, "_uuid", lambda index: f"GPU-x{index}")
    return fake


def test_cards_give_load_memory_and_power(nvml):
    names = ("cuda:0/drafter", "cuda:1")
    rows, sampler = collect([Device(n, "target", "", "cuda") for n in names], 2, every_s=0.02)
    assert sampler.trouble == []
    readings = {(row.device, row.busy, row.memory, row.power) for row in rows}
    assert readings == {(names[0], 0.37, 3 * 2**30, 251.5), (names[1], 1.0, 3 * 2**30, None)}
    assert nvml.open == 0


def test_a_card_without_counters_does_not_hide_the_others(nvml):
    rows, sampler = collect([Device(f"cuda:{i}", "target", "", "cuda") for i in (7, 0)], 1, every_s=0.02)
    assert {row.device for row in rows} == {"cuda:0"}
    assert sampler.trouble == ["cuda:7: NVMLError: Not Found"]


def test_a_card_that_is_lost_is_trouble(nvml):
    nvml.lost = True
    rows, sampler = collect([Device("cuda:0", "target", "", "cuda")], 0, every_s=0.02)
    assert rows == []
    assert sampler.trouble == ["cuda:0: NVMLError: GPU is lost"]


def test_no_driver_is_trouble_and_cores_are_still_sampled(nvml):
    def refuse():
        raise nvml.NVMLError("Driver Not Loaded")

    nvml.nvmlInit = refuse
    rows, sampler = collect([Device("cuda:0", "target", "", "cuda"), CPU], 1, every_s=0.02)
    assert {row.device for row in rows} == {CPU.name}
    assert sampler.trouble == ["cuda:0: NVMLError: Driver Not Loaded"]
