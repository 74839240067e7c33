"""Predictions that learn from earlier runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specscope.engine.cluster.measurements import FEWEST, KEPT, learn, scaled
from specscope.engine.drafting.planner import Plan
from specscope.engine.trace.events import OTHERS, Occupancy
from tests.traces.samples import sample_trace

VERIFY = ((1, 0.1), (8, 0.2))
PLAN = Plan(3, 3, 2.5, 2.0, seconds=0.05)


def trace_of(kind: str, seconds: float, temperature: float = 0):
    """Return a run with this time per token."""
    trace = sample_trace(kind, tokens=24)
    start = max(s.end for s in trace.spans if s.kind == "prefill")
    end = start + int(seconds * len(trace.commits) * 1e9)
    trace.commits[:] = [replace(c, time=end) for c in trace.commits]
    sampling = {**trace.header.sampling, "temperature": temperature}
    trace.header = replace(trace.header, sampling=sampling)
    return trace


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "learned.json"


def test_a_prediction_has_the_median_and_the_range_of_earlier_runs(path) -> None:
    for seconds in (0.1, 0.05, 0.025):  # half as fast as predicted, as fast, twice as fast
        learn(path, trace_of("speculative", seconds), PLAN, VERIFY)
    found = scaled(path, PLAN, "speculative", VERIFY, greedy=True)
    assert (found.low, found.speedup, found.high) == pytest.approx((1.0, 2.0, 4.0))
    assert found.runs == found.facts()["runs"] == 3


def test_plain_decoding_is_learned_too(path) -> None:
    learn(path, trace_of("speculative", 0.05), PLAN, VERIFY)
    learn(path, trace_of("autoregressive", 0.12), None, VERIFY)
    assert scaled(path, PLAN, "speculative", VERIFY, greedy=True).speedup == pytest.approx(0.12 / 0.05)


def test_other_methods_and_sampled_runs_are_kept_apart(path) -> None:
    learn(path, trace_of("speculative", 0.025), PLAN, VERIFY)
    assert scaled(path, PLAN, "pearl", VERIFY, greedy=True) == PLAN
    assert scaled(path, PLAN, "speculative", VERIFY, greedy=False) == PLAN
    assert "runs" not in PLAN.facts()


def test_disturbed_short_and_failed_runs_do_not_count(path) -> None:
    busy, short, failed = (trace_of("speculative", 0.025) for _ in range(3))
    busy.header.environment["cores"] = 2
    busy.occupancy.append(Occupancy(OTHERS, 0, 0.5, 0))
    del short.commits[FEWEST - 1 :]
    failed.footer = replace(failed.footer, status="failed")
    for trace in (busy, short, failed):
        learn(path, trace, PLAN, VERIFY)
    learn(path, trace_of("speculative", 0.025), None, VERIFY)  # a draft that was not planned
    assert not path.exists()


def test_the_last_runs_are_kept_and_a_broken_file_counts_as_none(path) -> None:
    for seconds in (0.1, *[0.05] * KEPT):
        learn(path, trace_of("speculative", seconds), PLAN, VERIFY)
    found = scaled(path, PLAN, "speculative", VERIFY, greedy=True)
    assert (found.low, found.runs) == (pytest.approx(2.0), KEPT)
    for broken in ("", "[1]", '{"speculative": [0]}', '{"speculative": "x"}', '{"speculative": [NaN]}'):
        path.write_text(broken)
        assert scaled(path, PLAN, "speculative", VERIFY, greedy=True) == PLAN, broken
