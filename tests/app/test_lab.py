"""The Lab tab: a sweep that grows cell by cell, its heat map, and refusals."""

from __future__ import annotations

import re

import gradio as gr
import pytest

from app.render.lab import heat_map
from app.tabs.lab import Lab
from traces.lab import Cell, Sweep

PROFILE = "pearl-4xA100"


@pytest.fixture(scope="module")
def built():
    """The tab's components, which all tests share."""
    with gr.Blocks():
        return Lab(None)


@pytest.fixture
def page(built, service):
    built.service = lambda: service
    return built


def test_the_map_grows_by_a_cell_and_every_cell_opens_its_trace(page, service):
    states = list(page.run("speculative", PROFILE, "1, 3", "0.9", 8, 1))
    counts = [len(re.findall("<small>", table)) for _, _, table in states]
    assert counts == [0, 1, 2, 2]
    assert 'data-done="1" data-total="2"' in states[1][1]
    for run in re.findall(r'href="/\?run=([^"]+)"', states[-1][2]):
        names = run.split(",")
        assert [service.trace(name).header.run_id for name in names] == names
    assert service.store.runs()[1] == 0


def test_stop_ends_the_sweep_after_the_cell(page):
    sweep = page.run("speculative", PROFILE, "1-4", "0.9", 4, 1)
    name, _, _ = next(sweep)
    next(sweep)
    page.end("another")
    page.end(name)
    (last,) = sweep
    assert "Stopped after 1 of 4 cells." in last[1]
    page.end(name)  # it has ended


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("speculative", "/etc/x.toml", "1", "0.5", 8, 1), "there is no profile"),
        (("tree", PROFILE, "1", "0.5", 8, 1), "has no sweep"),
        (("speculative", PROFILE, "x", "0.5", 8, 1), "no whole number"),
        (("speculative", PROFILE, "1", "half", 8, 1), "no list of rates"),
        (("speculative", PROFILE, "1", "0.5", None, 1), "tokens is 0"),
        (("speculative", PROFILE, "1-32", "0.5, 0.6", 8, 1), "number of cells is 64"),
    ],
)
def test_wrong_sweeps_are_one_alert(page, given, message):
    (state,) = page.run(*given)
    assert 'role="alert"' in state[1]
    assert message in state[1]


def test_the_best_length_of_a_row_is_marked_and_a_refused_one_has_its_reason():
    plan = Sweep("speculative", "gamma", (1, 2, 3), (0.5,), PROFILE)
    cells = [Cell(1, 0.5, (1.2, 1.4), ()), Cell(2, 0.5, (0.8,), ()), Cell(3, 0.5, (), (), "<too long>")]
    table = heat_map(plan, cells)
    assert table.count("app-best") == 1
    assert "1.30×<small>±0.10</small>" in table
    assert 'class="app-slower"' in table
    assert 'title="&lt;too long&gt;"' in table
