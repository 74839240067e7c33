"""The load by other programs, recorded at the end of a measured run."""

import psutil
import pytest

import specscope
from specscope.engine.cluster import occupancy
from specscope.engine.cluster.occupancy import OtherPrograms, ProcessorTime
from specscope.engine.trace.events import OTHERS
from specscope.engine.types import Limits


@pytest.fixture
def readings(monkeypatch):
    """Let the readings be these, one after the other."""
    values = [ProcessorTime(0.0, 100.0, {}), ProcessorTime(10.0, 108.0, {1: 3.0})]
    monkeypatch.setattr(occupancy, "processor_time", lambda _: values.pop(0))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    return values


def test_the_load_is_a_share_of_all_cores(readings):
    row = OtherPrograms([]).row(77)
    assert (row.device, row.time, row.busy) == (OTHERS, 77, 0.25)


def test_a_short_run_has_no_load(readings):
    readings[1] = readings[1]._replace(wall=0.1)
    assert OtherPrograms([]).row(77) is None


def test_a_process_that_has_ended_is_left_out():
    known = OtherPrograms([2**22 + 1])
    assert [process.pid for process in known._processes] == [psutil.Process().pid]


@pytest.mark.parametrize(
    "place", [{"runtime": "local-thread"}, {"runtime": "virtual", "profile": "pearl-4xA100"}]
)
def test_measured_runs_record_it_once_and_virtual_runs_do_not(monkeypatch, place):
    monkeypatch.setattr(occupancy, "SHORTEST", 0.0)
    with specscope.open(**place) as cluster:
        trace = cluster.run("autoregressive", "Hello", limits=Limits(max_new_tokens=4))
    rows = [row for row in trace.occupancy if row.device == OTHERS]
    assert len(rows) == (place["runtime"] != "virtual")
    if rows:
        assert 0 <= rows[0].busy <= 1
        assert rows[0].time >= max(span.end for span in trace.spans)
