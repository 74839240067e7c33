"""The Lab tab: sweeps that grow cell by cell, runs with models, the heat map, and refusals."""

from __future__ import annotations

import re
from dataclasses import replace

import gradio as gr
import pytest

from specscope.app import pairs
from specscope.app.render.lab import heat_map, spread_chart
from specscope.app.render.lab import page as file_of
from specscope.app.tabs import advise, lab, load
from specscope.app.tabs.lab import MODELS_ROW, build_lab
from specscope.app.tabs.settings import HERE
from specscope.engine.errors import WorkerDied
from specscope.engine.methods import METHODS
from specscope.traces.lab.axes import ACCEPTANCE, DRAFTER, Axis, axis, names_of, sweepable
from specscope.traces.lab.points import Point, points_of
from specscope.traces.lab.sweep import Sweep, SweepCell
from tests.app.fakes import FakeCluster

PROFILE = "pearl-4xA100"


@pytest.fixture(scope="module")
def built():
    """The tab's components, which all tests share."""
    with gr.Blocks():
        return build_lab(None)


def scripted(values: str, rates: str, tokens, seeds, method="speculative", profile=PROFILE, field="gamma"):
    return (method, field, values, ACCEPTANCE, rates, profile, "", tokens, seeds, "bundled", "", 1)


def decoded(values: str, *, profile=HERE, prompts="One\nTwo", passes=2, method="speculative", field="gamma"):
    return (method, field, values, MODELS_ROW, "", profile, "", 8, 1, "bundled", prompts, passes)


@pytest.mark.parametrize(
    ("tab", "module"), [(lab.build_lab, lab), (load.build_load, load), (advise.build_advise, advise)]
)
def test_each_control_of_a_tab_gives_the_setting_of_its_name(tab, module):
    with gr.Blocks() as blocks:
        made = tab(None)
    (start,) = [fn for fn in blocks.fns.values() if (made.start._id, "click") in fn.targets]
    given, usual = made.controls.settings([one.value for one in start.inputs]), module.usual_settings()
    chosen = {name: getattr(given, name) for name in ("models", "pair") if name in made.controls.made}
    assert given == replace(usual, **chosen)
    ids = [f"{made.controls.tab}-{name.replace('_', '-')}" for name in made.controls.made]
    assert [one.elem_id for one in start.inputs] == ids


def last_of(page, given):
    """Return the last state of a sweep."""
    return list(page.run(*given))[-1]


def test_the_map_grows_by_a_cell_that_opens_its_trace_and_stop_keeps_the_cells(page, service):
    states = list(page.run(*scripted("1, 3", "0.9", 8, 1)))
    assert [state.result.count("<small>") for state in states] == [0, 1, 2, 2]
    assert 'data-done="1" data-total="2"' in states[1].message
    assert "virtual · pearl-4xA100 · llama-2-7-70" in states[-1].result
    for run in re.findall(r'href="/\?run=([^"]+)"', states[-1].result):
        names = run.split(",")
        assert [service.trace(name).header.run_id for name in names] == names
    assert service.store.runs()[1] == 0
    states = page.run(*scripted("1-4", "0.9", 4, 1))
    name, _, _ = next(states)
    next(states)
    page.stops.end("another")
    page.stops.end(name)
    (last,) = states
    assert "Stopped after 1 of 4 cells." in last.message
    assert last.result.count("<small>") == 1
    page.stops.end(name)  # it has ended


def test_a_measured_sweep_has_alternating_passes_of_every_prompt(page, service, opener):
    opener.waiting.append(cluster := FakeCluster())
    last = last_of(page, decoded("2, 4"))
    assert "2 cells." in last.message
    assert all(part in last.result for part in ("measured · local-process", "2 samples · 2 passes"))
    methods = [method for method, _, _ in cluster.ran]
    assert len(methods) == 2 * 2 * 2 * 2  # cells, prompts, passes, and the baseline of each run
    assert methods[:4] == ["autoregressive", "speculative", "speculative", "autoregressive"]
    (link, _) = re.findall(r'href="/\?run=([^"]+)"', last.result)
    assert [len(side.split("~")) for side in link.split(",")] == [2, 2]
    assert all(service.trace(name) for side in link.split(",") for name in side.split("~"))
    assert service.store.runs()[1] == 16


def against_drafters(drafters: str, profile=HERE):
    return ("pearl", "gamma", "2, 4", DRAFTER, drafters, profile, "", 8, 1, "bundled", "One", 1)


def test_a_measured_sweep_warns_of_a_busy_machine_and_a_virtual_one_does_not(page, monkeypatch):
    monkeypatch.setattr(lab, "busy_since", lambda *_: "Other programs used 1.9 of 2 cores meanwhile")
    given = (decoded("2", passes=1, prompts="One"), scripted("1", "0.9", 4, 1))
    assert ["Other programs" in last_of(page, one).message for one in given] == [True, False]


def test_a_stopped_or_failed_run_keeps_the_cells_and_the_next_sweep_starts(page, opener):
    """Stopped in the first cell; and in the second one the workers die."""
    opener.waiting.append(cluster := FakeCluster(delay=30))
    states = page.run(*decoded("2, 4", prompts="One"))
    page.stops.end(next(states).name)
    (last,) = states
    assert "Stopped after 0 of 2 cells." in last.message
    run, cluster.delay = cluster.run, 0

    def die_later(method, *prompts, **settings):
        if settings["config"].get("gamma") == 4:
            raise WorkerDied("the worker of cpu:0 died")
        return run(method, *prompts, **settings)

    cluster.run = die_later
    last = last_of(page, decoded("2, 4", prompts="One", passes=1))
    assert 'role="alert"' in last.message
    assert "the worker of cpu:0 died" in last.message
    assert last.result.count("<small>") == 1


@pytest.mark.parametrize("key", sweepable())
def test_every_method_offers_its_numeric_fields_with_values_that_it_allows(key):
    fields, values, rows, *_ = lab.offer(key)
    method = METHODS[key]
    assert fields["choices"] == [n for n in names_of(method) if n not in (ACCEPTANCE, DRAFTER)]
    assert (rows["choices"][0][1] == ACCEPTANCE) == (ACCEPTANCE in names_of(method))
    assert (DRAFTER in dict(map(reversed, rows["choices"]))) == (DRAFTER in names_of(method))
    for field in fields["choices"]:
        assert axis(method, field, lab.offer_values(key, field)["value"]).values
    assert values == lab.offer_values(key, fields["value"])["value"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (scripted("1", "0.5", 8, 1, profile="/etc/x.toml"), "there is no profile"),
        (scripted("1", "0.5", 8, 1, method="autoregressive"), "has no sweep"),
        (scripted("1", "0.5", 8, 1, method="tree", field="width"), "has no sweep over &#x27;acceptance_rate"),
        (scripted("1", "0.5", 8, 1, profile=HERE), "have no models to measure"),
        (scripted("40", "0.5", 8, 1), "gamma is 40; it must be at least 1 and at most 32"),
        (scripted("1", "0.5", None, 1), "tokens is 0"),
        (decoded("1", prompts=" \n"), "number of prompts is 0"),
        (against_drafters("int4, /etc"), "there is no drafter &#x27;/etc&#x27;; choose among usual, int4, int8"),
        (against_drafters("int4", PROFILE), "the same for every drafter; measure on this machine"),
        ((*decoded("1")[:9], "none", "Hi", 1), "there are no models &#x27;none&#x27;"),
    ],
)  # fmt: skip
def test_wrong_sweeps_are_one_alert(page, given, message):
    (state,) = page.run(*given)
    assert 'role="alert"' in state.message
    assert message in state.message


def test_models_without_what_the_method_needs_are_refused_before_a_run(page, service, monkeypatch):
    monkeypatch.setattr(pairs, "lacks", lambda *_: "a drafter")
    (state,) = page.run(*decoded("1"))
    assert "Speculative decoding needs a drafter, and The bundled pair (a toy) has none" in state.message
    assert service.store.runs()[1] == 0


def plan(*values: int, rates=(0.5,), **more) -> Sweep:
    return Sweep("speculative", Axis("gamma", values), Axis(ACCEPTANCE, rates), **more)


def cell(value: int, *speedups: float, rate: float = 0.5, error: str = "") -> SweepCell:
    return SweepCell(rate, value, tuple((s,) for s in speedups), (), error)


@pytest.fixture
def unlinked(monkeypatch):
    """Cells without traces have no names of runs."""
    monkeypatch.setattr(SweepCell, "runs", property(lambda _: ["a", "b"]))


def test_the_best_length_is_marked_a_refused_one_has_its_reason_and_a_file_has_no_links(unlinked):
    table = heat_map(plan(1, 2, 3), [cell(1, 1.2, 1.4), cell(2, 0.8), cell(3, error="<too long>")])
    assert table.count("app-best") == 1
    assert "1.30×<small>±0.10</small>" in table
    assert 'class="app-slower"' in table
    assert 'title="&lt;too long&gt;"' in table
    file = file_of(plan(1), [cell(1, 1.2)], [])
    assert "href" not in file
    assert "run a b" in file
    assert "data-figure" not in file
    assert len(file) < 200_000, "a file without a chart has no plotly.js"


def test_points_lie_at_their_rates_and_the_chart_has_ranges_and_papers():
    points = [
        Point("gamma", 5, 0.75, 1.3, "A paper", "A paper: <gamma> 5"),
        Point("gamma", 5, 0.95, 1.3, "A paper", "above the map"),
        Point("gamma", 9, 0.75, 1.3, "A paper", "beside the map"),
        Point("gamma", 5, None, 2.0, "A paper", "no rate"),
        Point("gamma", None, 0.5, None, "A paper", "no length"),
    ]
    table = heat_map(plan(4, 5, rates=(0.5, 0.7, 0.9)), [], points)
    marks = re.findall(r'<i class="app-point" style="--down: (\S+)px[^>]*title="([^"]*)">(\d)</i>', table)
    assert sorted((number, down, title) for down, title, number in marks) == [
        ("1", "-10.8", "A paper: &lt;gamma&gt; 5"),  # a quarter of a row above 0.7
        ("4", "0.0", "no rate"),
        ("5", "0.0", "no length"),
    ]
    assert "app-right" not in table
    assert re.search(r'<th scope="col">5<i [^>]*>4</i></th>', table)
    assert re.search(r'<th scope="row">0.5<i [^>]*>5</i></th>', table)
    assert table.count("(outside of the map)") == 2
    swept = Sweep("pearl", Axis("gamma", (3, 5)), Axis(ACCEPTANCE, (0.8,)))
    cells = [cell(3, 1.5, 2.0, rate=0.8), cell(5, 2.5, rate=0.8)]
    drawn = spread_chart(swept, cells, points_of(swept, PROFILE, None))
    assert "&quot;array&quot;:[0.25,0.0]" in drawn
    assert "diamond-open" in drawn
    assert "Table 6" in drawn
    assert spread_chart(swept, cells[:1], []) == "", "a single value is no curve"


def test_a_sweep_over_one_field_has_no_values_of_a_second_one():
    values, decoded, seeds = lab.offer_rows("speculative", MODELS_ROW)
    assert (values["visible"], decoded["visible"], seeds["visible"]) == (False, True, False)
    values, decoded, seeds = lab.offer_rows("speculative", ACCEPTANCE)
    assert (values["value"], decoded["visible"], seeds["visible"]) == (lab.RATES, False, True)
    assert "value" not in lab.offer_rows("speculative", "none of its fields")[0]
