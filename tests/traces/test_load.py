"""The load by other programs that a trace holds."""

from dataclasses import replace

import pytest

from engine.trace.events import OTHERS, Occupancy
from tests.traces.samples import sample_trace
from traces.checks import check
from traces.export.perfetto import to_perfetto
from traces.export.report import render_report
from traces.load import other_load
from traces.metrics import measure
from traces.store import Store
from traces.view.document import view_model


def loaded(share, cores=4):
    trace = sample_trace("speculative", tokens=6)
    end = max(span.end for span in trace.spans)
    header = replace(trace.header, environment={**trace.header.environment, "cores": cores})
    return replace(trace, header=header, occupancy=[*trace.occupancy, Occupancy(OTHERS, end, share, 0)])


def test_a_busy_machine_is_named_in_pane_and_report(tmp_path):
    with Store(tmp_path / "traces.db") as store:
        store.insert(loaded(0.325))
        stored = store.load("sample-speculative")
    sentence = "Other programs used 1.3 of 4 cores during the run: the times may be wrong."
    assert view_model([stored])["runs"][0]["busy"] == sentence
    assert sentence in render_report([stored])


def test_a_calm_machine_has_a_figure_and_no_warning():
    trace = loaded(0.1)
    assert view_model([trace])["runs"][0]["busy"] == ""
    assert "0.4 of 4 cores" in render_report([trace])


def test_a_run_without_this_row_or_without_cores_has_no_load():
    assert other_load(sample_trace("speculative", tokens=6)) is None
    assert other_load(loaded(0.9, cores=None)) is None
    assert view_model([sample_trace("speculative", tokens=6)])["runs"][0]["busy"] == ""


def test_other_programs_are_no_device():
    trace = loaded(0.5)
    check(trace)
    assert OTHERS not in measure(trace).measured_occupancy
    assert len(view_model([trace])["runs"][0]["tracks"]) == 2
    assert to_perfetto(trace)
    trace.occupancy.append(Occupancy("gpu9", 0, 0.5, 0))
    with pytest.raises(Exception, match="gpu9"):
        check(trace)
