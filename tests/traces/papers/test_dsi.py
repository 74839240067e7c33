"""DSI's schedule: closed forms against followed forwards, and the grid's claims."""

import threading

import numpy as np
import pytest

from specscope.traces.papers import dsi
from specscope.traces.papers.dsi import measured_time


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


def test_one_rejection_by_hand():
    """Lookahead 2, drafter 1/4: token 1 at 1, tokens 2 and 3 at 1.5, token 4 at 2; then again."""
    right = np.array([True, True, True, False, True])
    assert dsi.run_time(right, 0.25, 2) == pytest.approx(2 + 1)
    assert dsi.si_run_time(right, 0.25, 2) == pytest.approx(3 * 1.5)


def test_a_rate_of_one_takes_the_drafters_time_and_a_rate_of_zero_the_targets():
    for lookahead in (1, 4, 200):
        for drafter in (0.01, 0.5, 1.0):
            arguments = (np.array(drafter), np.array(lookahead))
            assert dsi.dsi_time(arguments[0], np.array(1.0), arguments[1]) == pytest.approx(drafter)
            assert dsi.dsi_time(arguments[0], np.array(0.0), arguments[1]) == pytest.approx(1)


def test_figure_2_has_the_papers_grid_and_claims():
    maps = dsi.heat_maps()
    assert maps.dsi_over_best.shape == (100, 101)
    assert maps.dsi_over_best.min() >= 1 - 1e-9
    assert maps.dsi_over_best.max() == pytest.approx(1.6, rel=0.05)


def test_figure_7_leaves_out_latencies_that_need_more_servers():
    assert dsi.heat_maps(5).dsi_over_best.shape == (98, 101)


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
