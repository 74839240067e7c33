"""The analysis of open runs: handlers and HTML."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape

import gradio as gr
import pytest

from specscope.app.render.analysis import LONGEST, chart, difference
from specscope.app.tabs.analysis import USUAL_C, Analysis, draw, settings_of
from specscope.traces.facts.closed_forms import best_gamma, pearl_speedup, speculative_speedup
from specscope.traces.facts.definitions import FIGURES
from specscope.traces.facts.metrics import measure
from specscope.traces.imports.reading import read_traces
from specscope.traces.judge.diff import diff
from tests.app.commands import IMPORTED
from tests.traces.samples import sample_trace


@pytest.fixture(scope="module")
def built():
    """The components, which all tests share."""
    with gr.Blocks():
        return Analysis(None)


def test_one_run_has_a_what_if_with_its_own_settings_and_no_difference(page):
    trace = sample_trace("speculative", tokens=24)
    state = page.show([trace])
    assert (state[page.run]["value"], state[page.run]["visible"]) == (trace.header.run_id, False)
    assert state[page.card]["visible"] is True
    assert state[page.second]["visible"] is False
    assert state[page.gamma] == trace.header.config["gamma"]
    assert "Acceptance by definition" in state[page.acceptance]
    assert set(state) <= set(page.shown)


def test_runs_have_a_difference_of_any_two_and_a_choice_for_the_what_if(page, service):
    runs = [sample_trace(kind, tokens=24) for kind in ("autoregressive", "speculative", "pearl")]
    ids = [run.header.run_id for run in runs]
    for shown in (runs[1:], runs):
        state = page.show(shown)
        assert (state[page.second]["visible"], state[page.chosen]["visible"]) == (True, len(shown) > 2)
        assert "decoded" in state[page.diff]
        assert state[page.run]["visible"] is True
        assert [run for _, run in state[page.run]["choices"]] == [run.header.run_id for run in shown]
    assert [state[run]["value"] for run in page.pair_of_runs] == ids[:2]
    assert [[i for _, i in state[run]["choices"]] for run in page.pair_of_runs] == [ids, ids]
    (untimed, *_) = read_traces(IMPORTED / "vllm.jsonl").traces
    assert page.show([runs[2], untimed])[page.second]["visible"] is False
    service.store.insert(*runs)
    assert page.compare(*ids[:2]) == state[page.diff]
    assert "<b>PEARL · γ 4 decoded" in page.compare(ids[0], ids[2])
    assert "Both runs decoded equally long." in page.compare(ids[0], ids[0])
    assert 'role="alert"' in page.compare(ids[0], "nowhere")
    other = page.choose(ids[2])
    assert other[page.gamma] == runs[2].header.config["gamma"]
    assert set(other) <= set(page.controls)
    assert "there is no run" in page.choose("nowhere")[page.message]


def test_a_replay_is_shown_held_in_memory_and_stored_on_request(page, service):
    trace = sample_trace("speculative", tokens=16)
    service.store.insert(trace)
    state = page.show_replay(trace.header.run_id, "", "pearl-4xA100", "", 0, "gamma=6")
    assert state[page.message] == ""
    assert "what-if of sample-speculative" in state[page.result]
    ids = state[page.kept].split(",")
    assert [service.trace(i).header.run_id for i in ids] == ids
    assert service.store.runs()[1] == 1
    assert ids[0] in page.store_replay(state[page.kept])[page.message]
    assert service.store.runs()[1] == 3
    assert "already" in page.store_replay(state[page.kept])[page.message]


def test_wrong_settings_are_one_alert(page, service):
    assert settings_of(" gamma = 6, pre_verify=off ,") == {"gamma": "6", "pre_verify": "off"}
    service.store.insert(sample_trace("speculative", tokens=16))
    run, profile = "sample-speculative", "pearl-4xA100"
    for given, message in (
        ((run, "", "/etc/passwd.toml", "", 0, ""), "there is no profile &#x27;/etc/passwd.toml&#x27;"),
        ((run, "", profile, "", 0, "gamma"), "is not FIELD=VALUE, such as gamma=6"),
        ((run, "", profile, "", 0, "=3"), "is not FIELD=VALUE"),
        ((run, "", profile, "", 0, "gamma=99"), "gamma is 99"),
        (("nowhere", "", profile, "", 0, ""), "there is no run"),
    ):
        state = page.show_replay(*given)
        assert message in state[page.message]
        assert state[page.keep]["visible"] is False


def figure(page: str) -> dict:
    """Return the Plotly figure in a page."""
    (found,) = re.findall(r'data-figure="([^"]+)"', page)
    return json.loads(unescape(found))


def test_the_chart_has_the_closed_forms_and_the_best_lengths():
    page = chart(0.8, 5, 6.0)
    assert f"<b>{speculative_speedup(0.8, 5, 6):.2f}×</b>" in page
    assert f"<b>{pearl_speedup(0.8, 5, 6):.2f}×</b>" in page
    best = best_gamma(pearl_speedup, 0.8, 6, LONGEST)
    assert f"best {pearl_speedup(0.8, best, 6):.2f}× at gamma {best}" in page
    curves = {trace["name"]: trace["y"] for trace in figure(page)["data"]}
    lengths = range(1, LONGEST + 1)
    assert curves["PEARL"] == [pearl_speedup(0.8, g, 6.0) for g in lengths]
    assert curves["Speculative decoding"] == [speculative_speedup(0.8, g, 6.0) for g in lengths]


@pytest.mark.parametrize("values", [(0, 1, 1), (1, LONGEST, 20), (1.7, 99, 400), (-1, 0, 0.5), (None,) * 3])
def test_the_sliders_draw_at_every_value(values):
    assert len(figure(draw(*values))["data"]) == 3


def test_bars_of_a_waterfall_end_at_the_sum():
    first, second = sample_trace("speculative", tokens=24), sample_trace("pearl", tokens=24)
    page = difference(diff(first, second), ["<one>", "two"])
    assert "<one>" not in page
    assert "&lt;one&gt;" in page
    for part in page.split("<h3>")[3:5]:
        bars = re.findall(r'app-(won|lost|sum)" style="left:([\d.]+)%;width:([\d.]+)%', part)
        *steps, (kind, left, width) = [(k, float(a), float(b)) for k, a, b in bars]
        assert kind == "sum"
        assert all(a >= 0 and a + b <= 100.02 for _, a, b in steps)
        last = steps[-1]
        end = last[1] if last[0] == "won" else last[1] + last[2]
        sum_end = left if diff(first, second).difference < 0 else left + width
        assert end == pytest.approx(sum_end, abs=0.05)


def test_the_slider_of_c_has_the_figure_of_the_run_also_beyond_its_usual_end(page) -> None:
    trace = sample_trace("speculative")
    slow = [
        replace(s, end=s.start + 90 * (s.end - s.start)) if s.model == "target" else s for s in trace.spans
    ]
    for one in (trace, slower := replace(trace, spans=slow)):
        slider = page.show([one])[page.c]
        assert slider["value"] == round(measure(one).c, 2)
        assert slider["maximum"] >= slider["value"]
    assert measure(slower).c > USUAL_C
    assert page.c.label == FIGURES["c"].label
