"""ParallelSpec's speed-ups, and Spec-Bench's, from one round cost per method."""

import pytest

from traces.papers import outside, parallelspec


def test_the_cost_of_a_round_is_tau_over_the_speed_up_of_vicuna_7b():
    assert parallelspec.round_cost("EAGLE") == pytest.approx(3.58 / 2.18)
    assert parallelspec.round_cost("SpS", large=True) == pytest.approx(1 + 0.78 * (2.27 / 1.53 - 1), rel=0.01)


def test_only_vicuna_7b_at_temperature_0_is_fitted():
    rows = [row for item in parallelspec.PAPER.items.values() for row in item()]
    fitted = [row.row for row in rows if row.fitted]
    assert len(fitted) == 8
    assert all(name.startswith("V 7B ") and "temperature 0.0" in name for name in fitted)


def test_nothing_is_fitted_to_the_tables_of_others():
    assert not any(row.fitted for item in outside.PAPER.items.values() for row in item())
