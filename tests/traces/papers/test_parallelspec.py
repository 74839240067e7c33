"""ParallelSpec's speed-ups, and Spec-Bench's, from one round cost per method."""

import pytest

from specscope.traces.papers import outside, parallelspec


def test_the_cost_of_a_round_is_tau_over_the_speed_up_of_vicuna_7b():
    assert parallelspec.round_cost("EAGLE") == pytest.approx(3.58 / 2.18)
    assert parallelspec.round_cost("SpS", large=True) == pytest.approx(1 + 0.78 * (2.27 / 1.53 - 1), rel=0.01)


def test_nano_pearls_speed_ups_follow_from_its_accepted_tokens():
    """By hand, 1.5B with 72B: a step of AIME takes 22.96 ms, 7 drafts; 26.9 ms at batch 32.

    CNN/DM at batch 32: 43.49 ms a step, so 16.57 ms of prefill, for 13 % fewer tokens than PEARL's.
    """
    pair = "Qwen2.5 1.5B/72B"
    drafter, row = outside.drafter_ms(pair), (32 / 1.18861 - 1 / 0.04355) / 31
    assert drafter == pytest.approx(3.47, abs=0.01)
    assert outside.row_ms(pair) == pytest.approx(row, abs=1e-4)

    def together(mean: float, step: float, batch: int) -> float:
        rate, gamma = 1 - 1 / mean, round(step / drafter)
        post = rate / (1 + rate - rate**gamma)
        tokens = 1 - post + post * sum(rate**k for k in range(gamma))
        return max(gamma * drafter, step + batch * post * (gamma - 1) * row) / tokens

    step = 1e3 / 43.55
    assert outside.predicted(f"{pair}, AIME, batch 1") == pytest.approx(step / together(15.085, step, 1))
    whole, step = 32e3 / 735.78, 32e3 / 1188.61
    expected = whole / ((whole - step) / 1.134 + together(3.925, step, 32))
    assert outside.predicted(f"{pair}, CNN/DM, batch 32") == pytest.approx(expected)


def test_a_stub_head_accepts_by_level():
    """By hand: 1 + 0.5 + 0.5 x 0.5 x ...; a level that is never right ends the draft."""
    assert parallelspec.accepted_length([0.5, 0.5]) == pytest.approx(1.75, abs=0.02)
    assert parallelspec.accepted_length([1, 0, 1]) == 2
    assert parallelspec.accepted_length([parallelspec.rate_for(3.5)] * 5) == pytest.approx(3.5, rel=0.01)
