"""Repeated runs: the median pass is shown, with the spread of all."""

from dataclasses import replace

import pytest

from tests.traces.samples import sample_trace
from tests.traces.test_verdict import slowed
from traces.metrics import measure
from traces.passes import grouped, median_first, spread
from traces.view.document import view_model


def passes(kind: str, *factors: int):
    traces = [slowed(sample_trace(kind), factor) for factor in factors]
    for i, trace in enumerate(traces):
        trace.header = replace(trace.header, run_id=f"{kind}{i}")
    return traces


def test_the_median_pass_is_first_and_the_slower_of_two() -> None:
    three = passes("pearl", 3, 1, 2)
    assert [t.header.run_id for t in median_first(three)] == ["pearl2", "pearl0", "pearl1"]
    assert median_first(three[:2])[0].header.run_id == "pearl0"
    three[2].footer = replace(three[2].footer, status="cancelled")
    assert [t.header.run_id for t in median_first(three)] == ["pearl0", "pearl1", "pearl2"]
    assert median_first([]) == []


def test_the_spread_needs_two_passes() -> None:
    two = passes("pearl", 1, 2)
    slow, fast = (measure(t).tokens_per_second for t in reversed(two))
    assert spread(two) == {"count": 2, "low": pytest.approx(slow), "high": pytest.approx(fast)}
    assert spread(two[:1]) is None


def test_figures_show_the_median_with_the_spread() -> None:
    plain, three = sample_trace("autoregressive"), median_first(passes("pearl", 1, 2, 4))
    runs = view_model([plain, three[0]], [[plain], three])["runs"]
    assert runs[0]["passes"] is None
    assert runs[1]["passes"]["count"] == 3
    speed = measure(three[0]).tokens_per_second
    assert (
        runs[1]["figures"]["tokens_per_second"]
        == f"{speed:.1f} ({speed / 2:.1f} to {2 * speed:.1f} in 3 passes)"
    )


def test_passes_have_equal_method_settings_and_prompt() -> None:
    one, two = passes("pearl", 1, 2), passes("speculative", 1, 2)
    other = replace(one[0].header, config={"gamma": 9})
    changed = sample_trace("pearl")
    changed.header = other
    found = grouped([t.header for t in (one[0], two[0], two[1], one[1], changed)])
    assert [[h.run_id for h in group] for group in found] == [
        ["pearl0", "pearl1"],
        ["speculative0", "speculative1"],
        ["pearl0"],
    ]
