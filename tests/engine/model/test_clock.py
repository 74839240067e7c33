"""Marks of a stream become times of the host's clock."""

import time
from concurrent.futures import ThreadPoolExecutor

import torch

from specscope.engine.model import clock
from specscope.engine.model.clock import Clock, StreamClock


class FakeStream:
    """Events that pass 2 ms after they are recorded."""

    def __init__(self):
        self.waits = 0

    def event(self):
        stream = self

        class Event:
            def record(self):
                self.ns = time.perf_counter_ns() + 2_000_000

            def synchronize(self):
                stream.waits += 1
                while time.perf_counter_ns() < self.ns:
                    time.sleep(0.0005)

            def elapsed_time(self, other):
                return (other.ns - self.ns) / 1e6

        return Event()


def test_a_mark_of_a_cpu_is_its_time():
    host = Clock.of(torch.device("cpu"))
    begun = time.perf_counter_ns()
    mark = host.mark()
    assert begun <= mark <= time.perf_counter_ns()
    event = host.event()
    event.record()
    assert mark <= host.hold(event) <= time.perf_counter_ns()
    assert host.read()(mark) == mark
    assert host.uncertainty == 0


def test_marks_of_a_stream_are_read_with_one_wait():
    stream = FakeStream()
    device = StreamClock(stream.event)
    aligned = stream.waits
    before = time.perf_counter_ns()
    first, event = device.mark(), device.event()
    event.record()
    second = device.hold(event)
    submitted = time.perf_counter_ns()
    assert max(first, second) < 0
    times = device.read()
    assert stream.waits == aligned + 1
    assert before <= times(first) <= times(second) <= time.perf_counter_ns()
    assert times(second) <= submitted + 2_000_000 + 2 * device.uncertainty
    assert times(123) == 123  # a time of the host
    assert 2_000_000 <= 2 * device.uncertainty < 40_000_000


def test_the_anchor_is_renewed(monkeypatch):
    stream = FakeStream()
    device = StreamClock(stream.event)
    monkeypatch.setattr(clock, "RENEWED_NS", 0)
    device.mark()
    before = stream.waits
    device.read()
    assert stream.waits == before + 1 + 5
    assert device.read()(-1) == -1  # nothing is held


def test_each_thread_reads_its_own_marks():
    """One thread of a worker forwards, another one judges."""
    device = StreamClock(FakeStream().event)
    first = device.mark()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lambda: device.read()(device.mark())).result() < 0  # read before its mark
        found = other.submit(lambda: (device.mark(), device.read())).result()
    assert found[1](found[0]) > 0
    second = device.mark()
    times = device.read()
    assert 0 < times(first) < times(second)
