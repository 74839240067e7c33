"""SSD and SpecBranch: speeds from printed component times, and the cliff over gamma."""

from __future__ import annotations

import pytest

from specscope.traces.closed_forms import speculative_tokens, ssd_hit_rate
from specscope.traces.papers import parallel
from specscope.traces.papers.rows import Row


def rows(item: str) -> dict[str, Row]:
    return {row.row: row for row in parallel.PAPER.items[item]()}


def test_a_round_lasts_as_long_as_the_verification_or_the_branches():
    """By hand: glue and three steps take 10.45 ms, a verification 11.45 ms; four take 12.99 ms."""
    for gamma, round_ms in ((2, 11.45), (3, 11.45), (4, 12.99), (7, 20.61)):
        missed = 1 - ssd_hit_rate(0.8, gamma, 3, 0.7)
        ms = round_ms + 0.71 + missed * gamma * 2.54
        assert parallel.ssd_speed(0.8, gamma, 11.45) == pytest.approx(
            1e3 * speculative_tokens(0.8, gamma) / ms
        )


def test_the_cliff_is_predicted_from_the_speed_at_gamma_4():
    found = rows("SSD, reproduction")
    assert [row.row for row in found.values() if row.fitted] == ["gamma 4, tokens/s"]
    judged = [row for row in found.values() if row.predicted]
    assert len(judged) == 3
    assert all(abs(row.difference or 0) < 0.02 for row in judged)
    rate = parallel.rate_of_reproduction()
    speeds = [parallel.ssd_speed(rate, gamma, 11.45) for gamma in range(1, 9)]
    assert speeds.index(max(speeds)) == 2, "the fastest gamma is 3"
