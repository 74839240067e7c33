"""The recorder in threads, processes and CUDA streams, in crashes, and its cost."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest

import specscope
from specscope.engine.errors import UsageError
from specscope.traces.imports.reading import read_traces
from tests.engine.trace.recordings import DEVICES, ROOT, Event, read


def test_threads_may_record_at_once(path):
    """Every line is whole, every id is its own, and each span is on its thread's device."""
    devices = {f"d{i}": "drafter" for i in range(3)} | {"t": "target"}
    with specscope.record(path, devices=devices) as rec:
        rec.start()

        def work(device):
            for rows in range(300):
                with rec.span("draft", device, rows=rows):
                    pass

        threads = [threading.Thread(target=work, args=(f"d{i}",)) for i in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(100):
            with rec.span("verify"):
                pass
            rec.round(drafted=[1], accepted=1, emitted=[1, 2])
        for thread in threads:
            thread.join()
    trace = read(path)
    assert len(trace.spans) == 1000
    assert len({s.id for s in trace.spans}) == 1000
    assert len(trace.rounds) == 100
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
        runs = [
            subprocess.run(
                [sys.executable, "-c", PROCESS, path, str(rows)],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            for rows in (1, 2)
        ]
        assert [run.returncode for run in runs] == [0, 0], runs
        stamps = [tuple(map(int, run.stdout.split())) for run in runs]
        rec.round(drafted=[3, 4], accepted=2, emitted=[3, 4, 5], draft=[number for _, number in stamps])
    trace = read(path)
    assert [(s.start, s.id) for s in trace.spans] == [(now - begin, number) for now, number in stamps]
    assert all(0 < s.start < trace.commits[0].time for s in trace.spans)
    assert [d.draft_span for d in trace.decisions] == [*(s.id for s in trace.spans), -1]
    assert max(s.id for s in trace.spans) < 2**53


FORKED = """
import os, sys, specscope
with specscope.record(sys.argv[1], devices={"d": "drafter", "t": "target"}) as rec:
    with rec.span("verify"): pass
    if os.fork() == 0:
        with rec.span("draft"): pass
        os._exit(0)
    os.wait()
    with rec.span("verify"): pass
"""


def test_a_forked_child_records_with_its_parents_recorder(path):
    subprocess.run([sys.executable, "-c", FORKED, path], cwd=ROOT, check=True)
    trace = read(path)
    assert [s.kind for s in trace.spans] == ["verify", "draft", "verify"]
    first, child, last = (s.id for s in trace.spans)
    assert (first, last) == (0, 1)
    assert 2**24 <= child < 2**53


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
    devices = {"cuda:0": "target", "cpu": "drafter"}
    with specscope.record(path, devices=devices, events=Event) as rec:
        with rec.span("verify"):
            pass
        with rec.span("verify"):
            pass
        rec.round(drafted=[1], accepted=1, emitted=[1, 2])
    trace = read(path)
    first, second = trace.spans
    assert (first.end - first.start, second.start - first.end, second.end - second.start) == (500_000,) * 3
    assert set(trace.header.environment["clocks"]) == {"cuda:0"}
    assert trace.header.environment["clocks"]["cuda:0"]["uncertainty_ns"] >= 0
    assert [d.kind for d in trace.header.devices] == ["cuda", "cpu"]


def test_a_process_that_joins_has_cuda_events_too(path):
    devices = {"cuda:0": "target", "cuda:1": "drafter"}
    with specscope.record(path, devices=devices) as rec:
        rec.start()
        with specscope.record(path, join=True, events=Event) as other:
            for _ in range(2):
                with other.span("draft"):
                    pass
    first, second = read(path).spans
    assert (first.end - first.start, second.start - first.end) == (500_000, 500_000)


def test_an_error_ends_the_recording_as_failed(path):
    def loop():
        with specscope.record(path) as rec:
            rec.round(emitted=[1], texts=["x"])
            with rec.span("verify"):
                raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError):
        loop()
    trace = read(path)
    assert (trace.status, trace.footer.error) == ("failed", "ZeroDivisionError: by zero")
    assert [s.outcome for s in trace.spans] == ["cancelled"]
    assert trace.text == "x"


def test_an_interrupt_ends_it_as_cancelled(path):
    with pytest.raises(KeyboardInterrupt), specscope.record(path):
        raise KeyboardInterrupt
    assert read(path).status == "cancelled"


KILLED = """
import sys, time, specscope
rec = specscope.record(sys.argv[1], devices={"d": "drafter", "t": "target"})
rec.prompt("p", ids=[1])
for i in range(10**6):
    with rec.span("draft"): pass
    with rec.span("verify"): pass
    rec.round(drafted=[2], accepted=1, emitted=[2, 3], texts=["a", "b"])
    if i == 4:
        print("ready", flush=True)
        time.sleep(60)
"""


def test_a_killed_process_loses_no_row(path):
    run = subprocess.Popen([sys.executable, "-c", KILLED, path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "ready\n"
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    (trace,) = read_traces(path).traces
    assert (len(trace.spans), len(trace.rounds), len(trace.commits)) == (10, 5, 10)
    assert (trace.status, trace.footer.error) == ("incomplete", "the run ended without a footer")
    assert trace.text == "ab" * 5


def test_a_file_that_ends_within_a_line_keeps_the_lines_before(path):
    with specscope.record(path) as rec:
        rec.round(emitted=[1], texts=["a"])
        rec.round(drafted=[2], accepted=1, emitted=[2], texts=["b"])
    lines = path.read_bytes().splitlines(keepends=True)[:-1]
    path.write_bytes(b"".join(lines)[:-5])
    (trace,) = read_traces(path).traces
    assert trace.footer.error == "the file ends within a line, without a footer"
    assert trace.text == "ab"
    path.write_bytes(lines[0] + b'{"event":"com\n' + lines[1])
    with pytest.raises(UsageError, match="line 2"):
        read_traces(path)


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


def test_a_span_costs_microseconds_and_nothing_when_off(path):
    """Bounds that a busy machine keeps; `specscope bench` has the figures."""

    def cost(rec):
        best = float("inf")
        for _ in range(20):
            begun = time.perf_counter()
            for _ in range(200):
                with rec.span("draft", rows=1):
                    pass
            best = min(best, (time.perf_counter() - begun) / 200)
        return best

    with specscope.record(path) as on, specscope.record(None) as off:
        assert cost(on) < 50e-6
        assert cost(off) < 5e-6
