"""Calibration: bins, errors and expected acceptance, computed by hand and on real runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import specscope
from specscope.engine.trace.events import Decision
from specscope.engine.types import Limits, Sampling
from specscope.traces.calibration import Trial, calibration, calibrations, chance_of, trials, wilson
from specscope.traces.metrics import measure
from specscope.traces.view.calibration import calibration_views
from specscope.traces.view.document import view_model
from tests.traces.samples import sample_trace


def decided(place, q, outcome, *, p=0.5, rule="ratio", step=1, node=None) -> Decision:
    node = place - 1 if node is None else node
    return Decision(step, 0, node, place - 2, 10 + place, 7, p, q, 0.5, rule, outcome, 0, 1)


def run_with(*decisions):
    trace = sample_trace("speculative")
    return replace(trace, decisions=list(decisions))


def test_the_error_is_that_computed_by_hand() -> None:
    """Bins 0.2 (q 0.25, 1 of 2), 0.9 (q 0.95, 1 of 2) and 1.0, which belongs to the last bin."""
    tested = [
        Trial(1, 0.2, None, False),
        Trial(1, 0.29, None, True),
        Trial(1, 0.9, None, True),
        Trial(2, 1.0, None, False),
    ]
    found = calibration(tested)
    assert found is not None
    assert [(b.low, b.tested, b.accepted) for b in found.bins] == [(0.2, 2, 1), (0.9, 2, 1)]
    assert [b.q for b in found.bins] == pytest.approx([0.245, 0.95])
    assert found.error == pytest.approx(2 / 4 * 0.255 + 2 / 4 * 0.45)
    first, second = (calibration(tested, place) for place in (1, 2))
    assert first is not None
    assert second is not None
    assert first.error == pytest.approx(2 / 3 * 0.255 + 1 / 3 * 0.1)
    assert (second.tested, second.accepted, second.error) == (1, 0, 1.0)
    assert [c.place for c in calibrations(tested)] == [0, 1, 2]
    assert calibration(tested, 3) is None
    assert calibrations([]) == []


def test_only_tested_tokens_with_a_q_count() -> None:
    trace = run_with(
        decided(1, 0.8, "accepted"),
        decided(2, 0.6, "rejected"),
        decided(3, 0.4, "discarded"),
        decided(2, 0.6, "corrected", node=-1),
        decided(1, None, "accepted", step=2),
        decided(2, float("nan"), "rejected", step=2),
    )
    assert [(one.place, one.q, one.accepted) for one in trials(trace)] == [(1, 0.8, True), (2, 0.6, False)]


def test_the_rule_accepts_a_sampled_draft_with_p_over_q_and_a_determined_one_with_p() -> None:
    assert chance_of(decided(1, 0.8, "accepted", p=0.2), greedy=False) == pytest.approx(0.25)
    assert chance_of(decided(1, 0.2, "accepted", p=0.8), greedy=False) == 1.0
    assert chance_of(decided(1, 0.8, "rejected", p=0.2, rule="match"), greedy=False) == 0.2
    for unknown in (
        decided(1, 0.8, "accepted", p=None),
        decided(1, 0.8, "accepted", rule="typical"),
        decided(1, 0.8, "corrected", node=-1),
    ):
        assert chance_of(unknown, greedy=False) is None
    assert chance_of(decided(1, 0.8, "accepted"), greedy=True) is None


def test_the_expected_acceptance_is_unknown_unless_all_tests_have_one() -> None:
    known, unknown = Trial(1, 0.5, 0.4, True), Trial(1, 0.5, None, True)
    assert calibration([known, known._replace(chance=0.8)]).expected == pytest.approx(0.6)
    assert calibration([known, unknown]).expected is None


def test_the_interval_of_a_share_is_wilsons() -> None:
    """8 of 10: (0.8 + z / 20) / (1 + z / 10) with z = 1.96², and its half width."""
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=5e-5)
    assert wilson(0, 3)[0] == 0.0
    assert wilson(3, 3)[1] == 1.0
    assert wilson(0, 3)[1] == pytest.approx(0.5615, abs=5e-5)


@pytest.fixture(scope="module")
def cluster():
    with specscope.open("bundled", runtime="virtual", profile="pearl-4xA100") as opened:
        yield opened


@pytest.mark.parametrize("method", ["speculative", "tree"])
def test_real_draws_agree_with_the_expected_acceptance(cluster, method) -> None:
    run = cluster.run(method, "Tell me a story.", sampling=Sampling(0.8, seed=3), limits=Limits(150))
    everything, *places = calibrations(trials(run))
    tested = sum(d.outcome in ("accepted", "rejected") for d in run.decisions)
    assert everything.tested == sum(c.tested for c in places) == tested
    assert everything.accepted == sum(r.accepted for r in run.rounds)
    slots = {slot.slot: slot.tested for slot in measure(run).per_position if slot.tested}
    assert {c.place: c.tested for c in places} == slots
    assert everything.expected is not None
    deviation = (everything.expected * (1 - everything.expected) / everything.tested) ** 0.5
    assert abs(everything.accepted / everything.tested - everything.expected) < 4 * deviation


def test_figures_and_view_have_the_same_numbers(cluster) -> None:
    greedy = cluster.run("speculative", "Tell me a story.", limits=Limits(40))
    (view, *_), metrics = calibration_views(greedy), measure(greedy)
    assert view["error"] == pytest.approx(metrics.calibration_error, rel=1e-3)
    assert (view["expected"], metrics.expected_acceptance) == (None, None)
    assert view["tested"] == sum(view["bins"]["tested"])
    (run,) = view_model([greedy], redact_prompt=True)["runs"]
    assert run["calibration"] == calibration_views(greedy)
    assert run["figures"]["calibration_error"] == f"{metrics.calibration_error:.3f}"
