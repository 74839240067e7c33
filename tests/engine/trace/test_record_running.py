"""The recorder in threads, processes and CUDA streams, in crashes, its cost, and others' load."""

import os
import subprocess
import sys
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

import specscope
from specscope.engine.trace import load
from specscope.engine.trace.events import MEMBER, OTHERS, Occupancy
from specscope.engine.trace.jsonl import to_json
from specscope.traces.facts.comparable import other_load
from specscope.traces.facts.imported import origin
from specscope.traces.imports.reading import read_traces
from tests.engine.trace.recordings import DEVICES, ROOT, Event, ids, read, run


def test_threads_may_record_at_once_with_one_recorder_or_one_each(path):
    """Every line is whole, every id is its own, and each span is on its thread's device."""
    devices = {f"d{i}": "drafter" for i in range(6)} | {"t": "target"}
    with specscope.record(path, devices=devices) as rec:
        rec.start()

        def share(device):
            for rows in range(300):
                with rec.span("draft", device, rows=rows):
                    pass

        def join(device):
            for _ in range(20):
                with specscope.record(path, join=True) as other, other.span("draft", device):
                    pass

        with ThreadPoolExecutor(6) as pool:
            working = [pool.submit(work, f"d{i}") for i, work in enumerate((share, join) * 3)]
            for _ in range(100):
                with rec.span("verify"):
                    pass
                rec.round(drafted=[1], accepted=1, emitted=[1, 2])
            for one in working:
                one.result()
    trace = read(path)
    assert (len(ids(path)), len(trace.rounds)) == (3 * 320 + 100, 100)
    for device in devices:
        own = [s for s in trace.spans if s.device == device]
        assert all(a.end <= b.start for a, b in pairwise(own))


PROCESS = """
import sys, time, specscope
with specscope.record(sys.argv[1], join=True) as rec:
    now = time.perf_counter_ns()
    work = rec.add("draft", now, now + 5, "d", rows=int(sys.argv[2]))
    print(now, work.id)
    try:
        rec.round(emitted=[1])
    except specscope.UsageError as error:
        assert "records spans only" in str(error)
    else:
        sys.exit("a joined process recorded a round")
"""


def test_processes_append_to_one_file_with_one_clock(path):
    with specscope.record(path, devices=DEVICES) as rec:
        begin = time.perf_counter_ns()
        rec.start(begin)
        stamps = [tuple(map(int, run(PROCESS, path, rows).split())) for rows in (1, 2)]
        rec.round(drafted=[3, 4], accepted=2, emitted=[3, 4, 5], draft=[number for _, number in stamps])
    trace = read(path)
    assert [(s.start, s.id) for s in trace.spans] == [(now - begin, number) for now, number in stamps]
    assert all(0 < s.start < trace.commits[0].time for s in trace.spans)
    assert [d.draft_span for d in trace.decisions] == [*ids(path), -1]


def test_a_process_with_more_spans_than_ids_gets_further_ones(path, monkeypatch):
    monkeypatch.setattr("specscope.engine.trace.appended.EACH", 4)
    with specscope.record(path, devices=["drafter", "target"]) as rec:
        rec.start()
        with specscope.record(path, join=True) as other:
            for _ in range(10):
                for one, kind in ((rec, "verify"), (other, "draft")):
                    with one.span(kind):
                        pass
    assert len(ids(path)) == 20


@pytest.mark.parametrize("offset", [1000, 10**18])
def test_the_clock_of_another_machine_is_shifted_and_its_error_kept(path, offset):
    clocks = {"d": {"node": "10.0.0.2", "offset_ns": offset, "uncertainty_ns": 40}}
    with specscope.record(path, devices=DEVICES, clocks=clocks) as rec:
        rec.start(5000)
        rec.add("draft", 5100 + offset, 5200 + offset, "d")
        rec.add("verify", 5200, 5300, "t")
    trace = read(path)
    assert [(s.start, s.end) for s in trace.spans] == [(100, 200), (200, 300)]
    assert trace.header.environment["clocks"] == clocks


def test_cuda_events_time_the_spans_of_cuda_devices(path):
    """The times are those of the events, the order that of the stream; the header has the error."""
    devices = {"cuda:0": "target", "cuda:1": "drafter", "cpu": "drafter"}
    with specscope.record(path, devices=devices, events=Event) as rec:
        rec.start()
        with specscope.record(path, join=True, events=Event) as other:
            for one, kind, device in ((rec, "verify", "cuda:0"), (other, "draft", "cuda:1")):
                for _ in range(2):
                    with one.span(kind, device):
                        pass
        rec.round(drafted=[1], accepted=1, emitted=[1, 2])
    trace = read(path)
    for device in ("cuda:0", "cuda:1"):
        first, second = (s for s in trace.spans if s.device == device)
        assert (first.end - first.start, second.start - first.end, second.end - second.start) == (
            500_000,
        ) * 3
    assert trace.header.environment["clocks"]["cuda:0"]["uncertainty_ns"] >= 0
    assert "cpu" not in trace.header.environment["clocks"]
    assert [d.kind for d in trace.header.devices] == ["cuda", "cuda", "cpu"]


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ZeroDivisionError("by zero"), "failed", "ZeroDivisionError: by zero"),
        (KeyboardInterrupt(), "cancelled", ""),
    ],
)
def test_an_error_or_an_interrupt_ends_the_recording(path, error, status, said):
    def loop():
        with specscope.record(path) as rec:
            rec.round(emitted=[1], texts=["x"])
            with rec.span("verify"):
                raise error

    with pytest.raises(type(error)):
        loop()
    trace = read(path)
    assert (trace.status, trace.footer.error, trace.text) == (status, said, "x")
    assert [s.outcome for s in trace.spans] == ["cancelled"]


KILLED = """
import sys, time, specscope
rec = specscope.record(sys.argv[1], devices={"d": "drafter", "t": "target"})
rec.prompt("p", ids=[1])
for i in range(5):
    with rec.span("draft"): pass
    with rec.span("verify"): pass
    rec.round(drafted=[2], accepted=1, emitted=[2, 3], texts=["a", "b"])
print("ready", flush=True)
time.sleep(60)
"""


def test_a_killed_process_loses_no_row(path):
    program = [sys.executable, "-c", KILLED, path]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        running.kill()
    (trace,) = read_traces(path).traces
    assert (len(trace.spans), len(trace.rounds), len(trace.commits)) == (10, 5, 10)
    assert (trace.status, trace.footer.error) == ("incomplete", "the run ended without a footer")
    assert trace.text == "ab" * 5


@pytest.mark.parametrize("off", [{"path": None}, {"enabled": False}])
def test_a_recording_that_is_off_does_nothing(path, off):
    with specscope.record(**{"path": path, **off}) as rec:
        rec.prompt("x", ids=[1])
        rec.start()
        with rec.span("nonsense", device="nowhere") as work:
            work.rows = 3
        rec.end(rec.span("draft"))
        rec.add("draft", 2, 1)
        rec.round(drafted=[1], accepted=9)
        rec.discard([1])
        rec.close()
    assert not path.exists()


def test_spans_that_no_round_can_name_are_forgotten(path):
    """Of branches that are named only if they are right; otherwise each round looks at 4,096."""
    with specscope.record(path, devices=DEVICES) as rec:
        for i in range(50):
            with rec.span("branch", "d") as branch:
                pass
            with rec.span("verify"):
                pass
            rec.round(drafted=[1], accepted=1, emitted=[1, 2], draft=branch if i % 2 else -1)
            assert len(rec._claims._drafts[0]) <= 1


def test_a_span_costs_microseconds_and_nothing_when_off(path):
    """Bounds that a busy machine keeps; `specscope bench` has the figures."""

    def spans(rec):
        for _ in range(200):
            with rec.span("draft", rows=1):
                pass

    with specscope.record(path) as on, specscope.record(None) as off:
        assert min(timeit.repeat(lambda: spans(on), number=1, repeat=20)) < 200 * 50e-6
        assert min(timeit.repeat(lambda: spans(off), number=1, repeat=20)) < 200 * 5e-6


SECONDS = 1.0
"""Processor time of the work."""
NEAR = 0.5
"""Core seconds that others may use between two readings that are not quite at one time."""
SPIN = """
import pathlib, sys, time
while time.process_time() < float(sys.argv[2]): pass
pathlib.Path(sys.argv[1] + ".done").touch()
"""
JOINED = """
import pathlib, sys, time, specscope
end = time.process_time() + float(sys.argv[2])
with specscope.record(sys.argv[1], join=True) as rec:
    while time.process_time() < end:
        with rec.span("draft"):
            sum(range(20000))
pathlib.Path(sys.argv[1] + ".done").touch()
"""
DETACHED = """
import subprocess, sys
subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.DEVNULL)
"""


def work_of(code, path, *, detached):
    """Run a program as a child of this process, or as one that no process here waits for."""
    run(*([DETACHED, "-c"] if detached else []), code, path, SECONDS)
    while not Path(f"{path}.done").exists():
        time.sleep(0.05)


def recorded(path, work):
    """Record work; return the trace, and the core seconds of this process's tree and of all."""
    before = load.used()
    with specscope.record(path, devices=DEVICES) as rec:
        with rec.span("verify"):
            pass
        work()
        rec.round(emitted=[1])
    after = load.used()
    (trace,) = read_traces(path).traces
    return trace, sum(after.own.values()) - sum(before.own.values()), after.machine - before.machine


def seconds_of_others(trace):
    (row,) = (row for row in trace.occupancy if row.device == OTHERS)
    found = other_load(trace)
    assert found is not None
    return found.used * row.time / 1e9


@pytest.mark.parametrize("code", [SPIN, JOINED], ids=["a program", "one that joined"])
@pytest.mark.parametrize("detached", [False, True], ids=["a child", "no child"])
def test_the_work_of_children_and_of_those_that_joined_is_none_of_others(path, code, detached):
    """The parent knows a child's time. A detached process records its own, which counts once."""
    trace, own, machine = recorded(path, lambda: work_of(code, path, detached=detached))
    told = [row for row in trace.occupancy if row.device == MEMBER]
    assert bool(told) == (detached and code == JOINED)
    member = sum(row.busy * row.time / 1e9 * trace.header.environment["cores"] for row in told)
    assert member == pytest.approx(SECONDS if told else 0, abs=0.2)
    assert own < NEAR if detached else own >= SECONDS - 0.1
    # the start of one that joins is an other program's, as it joins after its imports
    assert seconds_of_others(trace) == pytest.approx(machine - own - member, abs=NEAR)
    assert seconds_of_others(trace) > SECONDS - NEAR or not detached or told
    assert "load by other programs" not in origin(trace.header).unknown


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
    readings = iter(load.ProcessorTime(at, ticks, {}) for at, ticks in ((9, 0.0), (10, 1.0), (20, 12.0)))
    monkeypatch.setattr(load, "used", lambda: next(readings))
    found = load.MachineLoad()
    found.start(10**10 - begun)
    row = found.row()
    assert (row is not None) == known
    if row is not None:
        assert row.time == 10**10 + begun
        used = (11 if not begun else 12) / (10 + begun / 1e9)
        assert row.busy == pytest.approx(min(1, used / os.cpu_count()))


def test_what_members_used_is_subtracted_once_up_to_the_end(path):
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
    assert other_load(trace).used == pytest.approx((0.5 - 0.25 * 1 / 2 - 0.125) * os.cpu_count())
