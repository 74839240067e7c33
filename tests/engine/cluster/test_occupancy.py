"""Occupancy samples, the load by other programs, and runs that begin on a running event loop."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import ModuleType, SimpleNamespace

import psutil
import pytest

import specscope
from specscope.engine.cluster import occupancy
from specscope.engine.cluster.occupancy import OtherPrograms, Sampler
from specscope.engine.trace import load
from specscope.engine.trace.events import OTHERS, Commit, Device, Occupancy
from specscope.engine.trace.load import ProcessorTime
from specscope.engine.types import Limits

CORE = min(os.sched_getaffinity(0))
CPU = Device(f"cpu:{CORE}", "target", "CPU core", "cpu")


def collect(devices, count, **settings):
    """Sample until there are `count` rows."""
    rows: list[Occupancy] = []
    start = time.perf_counter_ns()
    sampler = Sampler(devices, rows.append, lambda: time.perf_counter_ns() - start, **settings)
    sampler.start()
    wait_for(lambda: len(rows) >= count)
    sampler.stop()
    return rows


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def sampling():
    return any(thread.name == "occupancy" for thread in threading.enumerate())


def test_a_core_is_sampled_at_its_rate_with_this_process_memory():
    rows = collect([CPU], 3, every_s=0.1)
    assert {(row.device, row.power) for row in rows} == {(CPU.name, None)}
    times = [0, *(row.time for row in rows)]
    assert all(later - earlier > 90_000_000 for earlier, later in itertools.pairwise(times))
    assert all(0 <= row.busy <= 1 for row in rows)
    assert all(0.5 < row.memory / psutil.Process().memory_info().rss < 2 for row in rows)


def test_a_spinning_core_is_busy():
    code = f"import os\nos.sched_setaffinity(0, {{{CORE}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as spinning:
        spinning.stdout.readline()
        try:
            rows = collect([CPU], 3, pids={CPU.name: spinning.pid})
        finally:
            spinning.kill()
    assert max(row.busy for row in rows) > 0.8
    # the memory is the worker's: a bare interpreter, not this process with torch in it
    assert all(0 < row.memory < 100 * 2**20 for row in rows)


def test_a_worker_that_ends_loses_its_samples_and_the_others_stay():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        gone = Device(f"cpu:{CORE}/drafter", "drafter", "CPU core", "cpu")
        rows: list[Occupancy] = []
        sampler = Sampler([gone, CPU], rows.append, lambda: 0, 0.02, {gone.name: worker.pid})
        sampler.start()
        wait_for(lambda: any(row.device == gone.name for row in rows))
        worker.kill()
        worker.wait()
        for _ in range(3):
            count = len(rows)
            wait_for(lambda: len(rows) > count + 2)  # noqa: B023
        sampler.stop()
    assert {row.device for row in rows[count + 1 :]} == {CPU.name}


def test_an_error_of_emit_ends_only_the_sampling_and_emit_may_stop_it():
    def refuse(_):
        raise OSError("disk full")

    Sampler([CPU], refuse, lambda: 0, 0.01).start()
    wait_for(lambda: not sampling())
    stopped = Sampler([CPU], lambda _: stopped.stop(), lambda: 0, 0.01)
    stopped.start()
    wait_for(lambda: not sampling())


def test_stop_is_quick_and_final_and_virtual_devices_are_not_sampled():
    virtual = Sampler([Device("gpu0", "target", "GPU 0", "virtual")], pytest.fail, lambda: 0)
    virtual.start()
    assert not sampling()
    sampler = Sampler([CPU], pytest.fail, lambda: 0, every_s=30)
    sampler.start()
    start = time.monotonic()
    for one in (virtual, sampler, sampler):  # a second time is harmless
        one.stop()
    assert time.monotonic() - start < 15, "it does not wait for the next sample"


class Nvml(ModuleType):
    """The part of NVML that is used, with two cards; the second has no power sensor."""

    class NVMLError(Exception):
        """As pynvml names it."""

    def __init__(self):
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
    rows = collect([Device(n, "target", "", "cuda") for n in names], 2, every_s=0.02)
    readings = {(row.device, row.busy, row.memory, row.power) for row in rows}
    assert readings == {(names[0], 0.37, 3 * 2**30, 251.5), (names[1], 1.0, 3 * 2**30, None)}
    assert nvml.open == 0


@pytest.mark.parametrize("broken", ["a card without counters", "a card that is lost", "no driver", "no core"])
def test_what_cannot_be_read_hides_nothing_else(nvml, broken):
    def refuse():
        raise nvml.NVMLError("Driver Not Loaded")

    name, others = "cuda:0", [CPU]
    match broken:
        case "a card without counters":
            name, others = "cuda:7", [Device("cuda:0", "target", "", "cuda")]
        case "a card that is lost":
            nvml.lost = True
        case "no core":
            name = "cpu:4096"
        case _:
            nvml.nvmlInit = refuse
    rows = collect([Device(name, "target", "", name.split(":")[0]), *others], 2, every_s=0.02)
    assert {row.device for row in rows} == {device.name for device in others}


@pytest.mark.parametrize(
    ("wall", "busy"), [(10.0, 0.25), (0.1, None)], ids=["a share of all cores", "too short"]
)
def test_the_load_by_other_programs(monkeypatch, wall, busy):
    values = [ProcessorTime(0.0, 100.0, {}), ProcessorTime(wall, 108.0, {1: 3.0})]
    monkeypatch.setattr(occupancy, "processor_time", lambda _: values.pop(0))
    monkeypatch.setattr(load, "_cores", lambda: 2)
    known = OtherPrograms([2**22 + 1])
    assert [process.pid for process in known._processes] == [psutil.Process().pid], "ended ones are left out"
    row = known.row(77)
    assert (row and (row.device, row.time, row.busy)) == (busy and (OTHERS, 77, busy))


@pytest.mark.parametrize(
    "place", [{"runtime": "local-thread"}, {"runtime": "virtual", "profile": "pearl-4xA100"}]
)
def test_measured_runs_record_it_once_and_virtual_runs_do_not(monkeypatch, place):
    monkeypatch.setattr(load, "SHORTEST", 0.0)
    with specscope.open(**place) as cluster:
        trace = cluster.run("autoregressive", "Hello", limits=Limits(max_new_tokens=4))
    rows = [row for row in trace.occupancy if row.device == OTHERS]
    assert len(rows) == (place["runtime"] != "virtual")
    if rows:
        assert 0 <= rows[0].busy <= 1
        assert rows[0].time >= max(span.end for span in trace.spans)


VIRTUAL = {"runtime": "virtual", "profile": "pearl-4xA100"}
PLACES = {
    "virtual": VIRTUAL,
    "thread": {"runtime": "local-thread", "device": "cpu"},
    "process": {"device": "cpu"},
}


def under_asyncio_run(cell):
    async def main():
        return cell()

    return asyncio.run(main())


def in_a_notebook(cell):
    """Call a cell as a kernel does whose loop runs for ever: from a callback, outside any task."""
    loop, outcomes = asyncio.new_event_loop(), []

    def execute():
        try:
            outcomes.append(cell())
        finally:
            loop.stop()

    with closing(loop):
        loop.call_soon(execute)
        loop.run_forever()
    return outcomes[0]


def decoded(place):
    """Return the text and the events' number of a run, and of a measurement before it."""
    with specscope.open("bundled", **place) as cluster:
        seen = []
        trace = cluster.run("speculative", "Tell me a story.", limits=Limits(12), listener=seen.append)
        return trace.text, trace.status, bool(cluster.c), seen[-1] is trace.footer


@pytest.mark.parametrize(
    ("host", "place"),
    [(under_asyncio_run, "virtual"), (in_a_notebook, "thread"), (in_a_notebook, "process")],
)
def test_a_run_on_a_running_loop_has_the_usual_text(host, place):
    text, *_ = decoded(VIRTUAL)
    assert len(text) > 20
    assert host(lambda: decoded(PLACES[place])) == (text, "done", True, True)


@pytest.mark.parametrize(("host", "presses"), [(under_asyncio_run, 4), (in_a_notebook, 1)])
def test_ctrl_c_cancels_a_run_on_a_running_loop(host, presses):
    seen, later = [], []

    def listen(event):
        seen.append(event)
        if isinstance(event, Commit) and sum(isinstance(e, Commit) for e in seen) == 2:
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.3)

    def cell():
        with specscope.open("bundled", **PLACES["thread"]) as cluster:
            try:
                cluster.run("autoregressive", "Tell me a story.", limits=Limits(2000), listener=listen)
            finally:
                later.append(cluster.run("autoregressive", "Hi", limits=Limits(4)).status)

    with pytest.raises(KeyboardInterrupt):
        host(cell)
    assert (seen[-1].status, len(seen[-1].texts)) == ("cancelled", 1)
    assert len(later) == 1, "the cluster was whole"
