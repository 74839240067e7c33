"""The load by other programs in recordings, from Linux's /proc."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import pytest

import specscope
from specscope.engine.trace import load
from specscope.engine.trace.events import MEMBER, OTHERS, Occupancy
from specscope.engine.trace.jsonl import to_json
from specscope.traces.comparable import other_load
from specscope.traces.imported import origin
from specscope.traces.imports.reading import read_traces
from tests.engine.trace.recordings import DEVICES, ROOT

SECONDS = 1.5
SPIN = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end: pass
"""
JOINED = """
import sys, time, specscope
end = time.monotonic() + float(sys.argv[2])
with specscope.record(sys.argv[1], join=True) as rec:
    while time.monotonic() < end:
        with rec.span("draft"):
            sum(range(20000))
"""
DETACHED = """
import subprocess, sys
subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.DEVNULL)
"""


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def recorded(path, work):
    """Record some work; return the trace, and the core seconds of this process's tree and of all."""
    before = load.used()
    with specscope.record(path, devices=DEVICES) as rec:
        with rec.span("verify"):
            pass
        work()
        rec.round(emitted=[1])
    after = load.used()
    (trace,) = read_traces(path).traces
    return trace, after.own - before.own, after.machine - before.machine


def seconds_of_others(trace):
    (row,) = (row for row in trace.occupancy if row.device == OTHERS)
    found = other_load(trace)
    assert found is not None
    return found.used * row.time / 1e9


def in_a_child():
    child = multiprocessing.get_context("fork").Process(target=spin, args=(SECONDS,))
    child.start()
    child.join()


def in_two_processes():
    done = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=True)"
    subprocess.run([sys.executable, "-c", done, SPIN, str(SECONDS)], check=True)


@pytest.mark.parametrize("work", [lambda: spin(SECONDS), in_a_child, in_two_processes])
def test_the_work_of_a_loop_and_of_its_children_is_none_of_others(path, work):
    trace, own, machine = recorded(path, work)
    assert own >= 0.2
    assert seconds_of_others(trace) == pytest.approx(machine - own, abs=0.15 + 0.05 * machine)
    assert origin(trace.header).unknown.count("load by other programs") == 0


def test_a_process_that_is_no_child_is_another_program(path):
    def work():
        subprocess.run([sys.executable, "-c", DETACHED, "-c", SPIN, str(SECONDS)], check=True)
        time.sleep(SECONDS)

    trace, own, _ = recorded(path, work)
    assert own < 0.6
    assert seconds_of_others(trace) > 0.2


@pytest.mark.parametrize("detached", [False, True])
def test_a_process_that_joined_is_no_other_program(path, detached):
    """A child's time is known to the parent; another one tells its own, and it is counted once."""

    def work():
        words = ["-c", JOINED, str(path), str(SECONDS)]
        command = [sys.executable, *(["-c", DETACHED] if detached else []), *words]
        subprocess.run(command, cwd=ROOT, check=True)
        time.sleep(SECONDS if detached else 0)

    trace, own, machine = recorded(path, work)
    told = [row for row in trace.occupancy if row.device == MEMBER]
    assert bool(told) == detached
    cores = trace.header.environment["cores"]
    member = sum(row.busy * row.time / 1e9 * cores for row in told)
    assert (member > 0.2) == detached
    assert seconds_of_others(trace) == pytest.approx(machine - own - member, abs=0.3 + 0.05 * machine)


def test_where_nothing_is_known_nothing_is_recorded(path, monkeypatch, tmp_path):
    monkeypatch.setattr(load, "_PROC", tmp_path / "absent")
    with specscope.record(path) as rec:
        with rec.span("verify"):
            time.sleep(0.3)
        rec.round(emitted=[1])
    (trace,) = read_traces(path).traces
    assert other_load(trace) is None
    assert "load by other programs" in origin(trace.header).unknown


@pytest.mark.parametrize(("begun", "known"), [(0, True), (10**9, True), (10**10, False)])
def test_only_the_load_during_the_run_is_told(path, monkeypatch, begun, known):
    """The times of a run may be given afterwards: it may have begun before this program looked."""
    readings = iter(
        [load.Used(at, ticks, 0.0) for at, ticks in ((9 * 10**9, 0.0), (10**10, 1.0), (2 * 10**10, 12.0))]
    )
    monkeypatch.setattr(load, "used", lambda: next(readings))
    found = load.Load()
    found.start(10**10 - begun)
    row = found.row()
    assert (row is not None) == known
    if row is not None:
        seconds = 10 + begun / 1e9
        assert row.time == 10**10 + begun
        assert row.busy == pytest.approx(min(1, (11 if not begun else 12) / seconds / os.cpu_count()))


def test_what_members_used_is_subtracted_once_up_to_the_end(path):
    cores = os.cpu_count()
    with specscope.record(path, devices=DEVICES) as rec:
        rec.start(0)
        rec.round(emitted=[1], time=10**9)
    with path.open("a") as file:
        for device, time_s, busy in (
            (MEMBER, 1, 0.25),
            (OTHERS, 2, 0.5),
            (MEMBER, 2, 0.125),
            (MEMBER, 3, 1.0),
        ):
            file.write(to_json(Occupancy(device, time_s * 10**9, busy, 0)) + "\n")
    (trace,) = read_traces(path).traces
    assert other_load(trace).used == pytest.approx((0.5 - 0.25 * 1 / 2 - 0.125) * cores)
