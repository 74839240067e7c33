"""The papers' formulas by hand, by enumeration and against followed forwards."""

from __future__ import annotations

import threading
from itertools import product

import numpy as np
import pytest

from specscope.traces.closed_forms import speculative_tokens, ssd_hit_rate
from specscope.traces.papers import dsi, ems, parallel
from specscope.traces.papers import pearl_speeds as pearl
from specscope.traces.papers.dsi import measured_time

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


def test_a_round_lasts_as_long_as_the_verification_or_the_branches():
    """By hand: glue and three steps take 10.45 ms, a verification 11.45 ms; four take 12.99 ms."""
    for gamma, round_ms in ((2, 11.45), (3, 11.45), (4, 12.99), (7, 20.61)):
        missed = 1 - ssd_hit_rate(0.8, gamma, 3, 0.7)
        ms = round_ms + 0.71 + missed * gamma * 2.54
        assert parallel.ssd_speed(0.8, gamma, 11.45) == pytest.approx(
            1e3 * speculative_tokens(0.8, gamma) / ms
        )


# ParallelSpec and the tables of others.


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
