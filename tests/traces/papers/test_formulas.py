"""The papers' formulas by hand, by enumeration and against followed forwards."""

from __future__ import annotations

import threading
from itertools import product

import numpy as np
import pytest

from specscope.traces.closed_forms import speculative_tokens, ssd_hit_rate
from specscope.traces.papers import dsi, ems, outside, parallel
from specscope.traces.papers import pearl_speeds as pearl
from specscope.traces.papers.dsi import measured_time
from specscope.traces.papers.rows import Row

# DSI's schedule.


@pytest.mark.parametrize(
    ("drafter", "rate", "lookahead"),
    [(0.1, 0.8, 2), (0.3, 0.9, 1), (0.5, 0.7, 5), (0.9, 0.95, 4), (1, 0.5, 3)],
)
def test_the_closed_form_is_the_mean_of_followed_forwards(drafter, rate, lookahead):
    right = np.random.default_rng(0).random(40_000) < rate
    closed = float(dsi.dsi_time(np.array(drafter), np.array(rate), np.array(lookahead)))
    assert dsi.run_time(right, drafter, lookahead) / len(right) == pytest.approx(closed, rel=0.02)
    closed = float(dsi.si_time(np.array(drafter), np.array(rate), np.array(lookahead)))
    assert dsi.si_run_time(right, drafter, lookahead) / len(right) == pytest.approx(closed, rel=0.02)


def test_threads_take_at_least_the_time_of_the_schedule():
    right = [True, True, False, True]
    took = measured_time(right, 0.02, 0.005, 2, 7)
    assert took >= dsi.run_time(np.array(right), 0.25, 2) * 0.02


def test_an_interrupted_pool_leaves_no_thread(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(dsi, "wait", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        measured_time([True] * 4, 0.02, 0.005, 2, 7)
    assert threading.active_count() == before


# EMS-SD's appendix B.


@pytest.mark.parametrize("accuracy", [0.3, 0.8, 0.9])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_figure_7_equals_the_enumeration_of_all_batches(accuracy, batch):
    most = 5
    lengths = {k: accuracy ** (k - 1) * (1 - accuracy) for k in range(1, most)} | {
        most: accuracy ** (most - 1)
    }
    largest = 0.0
    for sample in product(lengths, repeat=batch):
        share = 1.0
        for length in sample:
            share *= lengths[length]
        largest += share * max(sample)
    assert ems.largest_accepted(accuracy, batch, most) == pytest.approx(largest)
    mean = sum(length * share for length, share in lengths.items())
    assert ems.mean_accepted(accuracy, most) == pytest.approx(mean)
    assert ems.padding_ratio(accuracy, batch, most) == pytest.approx(largest / mean - 1, abs=1e-12)


# SSD.


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


# ParallelSpec and the tables of others.


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


# PEARL.


@pytest.mark.parametrize(("gamma", "gain"), [(5, 1.13), (7, 1.15)])
def test_a_rate_that_varies_along_the_text_makes_pearl_faster(gamma, gain):
    """The reason given for PEARL's misses: harmonic means of two halves against one rate."""
    pair = pearl.pair_of("llama-2-7-70")
    halves = [pair._replace(rate=rate) for rate in (0.98, 0.50)]
    mixed = max(2 / sum(1 / pearl.speculative(half, g) for half in halves) for g in range(1, 33))
    uniform = pearl.pair_of("llama-2-7-70", mixed)
    faster = 2 / sum(1 / pearl.pearl(half, gamma) for half in halves)
    assert faster / pearl.pearl(uniform, gamma) == pytest.approx(gain, abs=0.005)


@pytest.mark.parametrize("rate", [0.6, 0.9])
def test_runs_of_independent_tokens_give_the_closed_forms(rate):
    pair = pearl.Pair(50.0, 12.0, 1.9, rate)
    lengths = np.random.default_rng(0).geometric(1 - rate, 200_000) - 1
    assert pearl.speculative_varying(pair, lengths, 5) == pytest.approx(pearl.speculative(pair, 5), rel=0.01)
    assert pearl.pearl_varying(pair, lengths) == pytest.approx(pearl.pearl(pair), rel=0.01)


def test_runs_of_a_recorded_text_vary_more_than_independent_ones():
    """And PEARL gains from it where speculative decoding is as fast; the bound holds for all."""
    pair = pearl.pair_of("llama-2-7-70", 2.0)
    lengths = pearl.runs_of_speed(pair, 2.0)
    best = max(pearl.speculative_varying(pair, lengths, gamma) for gamma in range(1, 33))
    assert best == pytest.approx(pearl.best_speculative(pair), rel=0.01)
    mean = lengths.mean()
    assert lengths.std() > 1.2 * (mean * (mean + 1)) ** 0.5
    assert pearl.pearl_varying(pair, lengths) > 1.03 * pearl.pearl(pair)
    assert pearl.pearl_varying(pair, lengths) < pearl.most_varying(pair, mean)
    for mean in (8.0, 25.0):
        assert pearl.runs_of_mean(mean).mean() == pytest.approx(mean, rel=0.08)
