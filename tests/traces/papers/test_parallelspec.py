"""ParallelSpec's speed-ups, and Spec-Bench's, from one round cost per method."""

import pytest

from traces.papers import outside, parallelspec


def test_the_cost_of_a_round_is_tau_over_the_speed_up_of_vicuna_7b():
    assert parallelspec.round_cost("EAGLE") == pytest.approx(3.58 / 2.18)
    assert parallelspec.round_cost("SpS", large=True) == pytest.approx(1 + 0.78 * (2.27 / 1.53 - 1), rel=0.01)


def test_only_vicuna_7b_at_temperature_0_is_fitted():
    items = [item for name, item in parallelspec.PAPER.items.items() if name != "Stub head"]
    rows = [row for item in items for row in item()]
    fitted = [row.row for row in rows if row.fitted]
    assert len(fitted) == 8
    assert all(name.startswith("V 7B ") and "temperature 0.0" in name for name in fitted)


def test_nothing_is_fitted_to_the_tables_of_others():
    assert not any(row.fitted for item in outside.PAPER.items.values() for row in item())


def test_nano_pearls_speed_ups_follow_from_its_accepted_tokens():
    """By hand, AIME at batch 1: a step of 22.96 ms is 7 forwards of 3.47 ms; a = 1 - 1 / 15.085."""
    assert outside.drafter_ms("1.5B") == pytest.approx(3.47, abs=0.01)
    assert outside.row_ms() == pytest.approx((32 / 1.18861 - 1 / 0.04355) / 31, abs=1e-4)
    rate, step = 1 - 1 / 15.085, 1e3 / 43.55
    post = rate / (1 + rate - rate**7)
    tokens = 1 - post + post * sum(rate**k for k in range(7))
    together = max(7 * outside.drafter_ms("1.5B"), step + post * 6 * outside.row_ms())
    assert outside.predicted("1.5B", 1, 15.085, 43.55) == pytest.approx(tokens * step / together)
    judged = [row for row in outside.PAPER.items["nano-PEARL, H200"]() if row.predicted]
    assert len(judged) == 32
    assert sum(row.hit for row in judged) >= 30
    assert all(row.hit or "CNN/DM" in row.row for row in judged), "of long prompts, whose prefill counts"


def test_a_stub_head_accepts_by_level():
    """By hand: 1 + 0.5 + 0.5 x 0.5 x ...; a level that is never right ends the draft."""
    assert parallelspec.accepted_length([0.5, 0.5]) == pytest.approx(1.75, abs=0.02)
    assert parallelspec.accepted_length([1, 0, 1]) == 2
    assert parallelspec.accepted_length([parallelspec.rate_for(3.5)] * 5) == pytest.approx(3.5, rel=0.01)


def test_the_gain_by_parallelspec_follows_from_the_lengths_and_one_forward_less_per_level():
    rows = [
        row for row in parallelspec.PAPER.items["Stub head"]() if row.row.endswith("gain by ParallelSpec")
    ]
    assert len(rows) == 5
    assert all(row.hit and not row.fitted for row in rows)
    assert parallelspec.stub_round_cost("EAGLE", parallel=True) < parallelspec.stub_round_cost(
        "EAGLE", parallel=False
    )
