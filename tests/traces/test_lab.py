"""Sweeps: cells with spread, traces behind them, early stop, refusals."""

from __future__ import annotations

import threading

import pytest

from engine.errors import UsageError
from engine.methods import METHODS
from traces.closed_forms import speculative_speedup
from traces.comparable import comparisons
from traces.lab import Cell, Sweep, fields_of, numbers, shares, sweep, sweepable

PROFILE = "pearl-4xA100"


def plan(**more) -> Sweep:
    settings = {
        "method": "speculative",
        "field": "gamma",
        "values": (1, 4),
        "rates": (0.5, 1.0),
        "tokens": 16,
    }
    return Sweep(**{**settings, "profile": PROFILE, "seeds": 2, **more})


def test_every_value_and_rate_is_a_cell_with_a_spread_and_a_trace():
    cells = list(sweep(plan()))
    assert [(cell.rate, cell.value) for cell in cells] == [(0.5, 1), (0.5, 4), (1.0, 1), (1.0, 4)]
    for cell in cells:
        assert len(cell.speedups) == 2
        assert min(cell.speedups) <= cell.mean <= max(cell.speedups)
        run, plain = cell.traces
        assert run.header.config["gamma"] == cell.value
        assert [c.baseline for c in comparisons([[run], [plain]])] == [1, 1]
        assert run.token_ids() == plain.token_ids()
    sure = cells[-1]
    assert sure.spread == pytest.approx(0, abs=1e-9)
    assert sure.mean > cells[2].mean > 1  # gamma 4 beats gamma 1 where every draft is right
    assert sure.mean < speculative_speedup(1.0, 4, 100)


def test_a_stop_ends_the_sweep_after_the_cell():
    stop = threading.Event()
    cells = list[Cell]()
    for cell in sweep(plan(tokens=4, seeds=1), stop):
        cells.append(cell)
        stop.set()
    assert len(cells) == 1


def test_a_value_that_the_method_refuses_is_a_cell_with_the_reason():
    (cell,) = sweep(plan(method="dsi", field="lookahead", values=(1,), rates=(0.5,), tokens=4))
    assert "lookahead is 1; with" in cell.error
    assert cell.speedups == ()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "tree"}, "tree has no sweep over 'gamma'; choose a method among"),
        ({"field": "width"}, "speculative has no sweep over 'width'"),
        ({"values": ()}, "at least one value"),
        ({"values": (99,)}, "gamma is 99"),
        ({"rates": (1.5,)}, r"acceptance rate is 1\.5"),
        ({"tokens": 0}, "tokens is 0"),
        ({"seeds": 9}, "seeds is 9"),
        (
            {"values": tuple(range(1, 33)), "rates": tuple(i / 10 for i in range(10))},
            "number of cells is 320",
        ),
    ],
)
def test_wrong_sweeps_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        next(sweep(plan(**settings)))


def test_only_chains_of_a_drafter_are_swept():
    assert {"speculative", "pearl", "dsi"} <= set(sweepable())
    assert not fields_of(METHODS["eagle"])
    assert not fields_of(METHODS["llma"])


def test_lists_of_numbers():
    assert numbers("1-3, 8,2") == (1, 2, 3, 8)
    assert shares("0.5, 1,0.5") == (0.5, 1.0)
    for wrong in ("a", "3-", "9-3", "1-999"):
        with pytest.raises(UsageError):
            numbers(wrong)
    with pytest.raises(UsageError, match="is no list of rates"):
        shares("half")
