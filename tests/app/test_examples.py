"""The finished examples of the Lab, the Load and the Advise tab, which the code still gives."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import gradio as gr
import pytest

from specscope.app.jobs.service import Service
from specscope.app.tabs import advise, lab, load
from specscope.app.tabs.advise import build_advise, question_of
from specscope.app.tabs.lab import build_lab
from specscope.app.tabs.load import build_load, load_plan, serve
from specscope.app.tabs.settings import read
from specscope.traces.advise import answer


@pytest.fixture(scope="module")
def tabs():
    with gr.Blocks():
        return build_lab(None), build_load(None), build_advise(None)


def test_the_tabs_open_with_a_labelled_example_without_links_and_with_stop_off(tabs) -> None:
    for shown in (tab.first("") for tab in tabs):
        assert 'data-state="example"' in shown
        assert ">example</span>" in shown
        assert "virtual · " in shown
        assert "app-figure" in shown or "app-bars" in shown
        assert "href=" not in shown, "the runs of an example are in no database"
    assert [tab.first("a sweep") for tab in tabs] == [gr.skip()] * 3, "a result stays"
    assert [tab.stop.interactive for tab in tabs] == [False] * 3


def test_a_sweep_with_the_examples_settings_gives_its_cells(tabs, service) -> None:
    tabs[0].service = service
    stored = read("lab")
    given = replace(lab.usual_settings(), values="3, 5", row_values="0.7")
    *_, last = tabs[0].run(*(getattr(given, name) for name in tabs[0].controls.made))
    mean = {(row, column): sum(s[0] for s in speeds) / len(speeds) for row, column, speeds in stored["cells"]}
    assert re.findall(r">(\d\.\d\d)×<small>", last.result) == [
        f"{mean[0.7, column]:.2f}" for column in (3, 5)
    ]


def test_a_load_with_the_examples_settings_gives_its_rows() -> None:
    stored = read("load")["result"]["methods"]
    given = replace(load.usual_settings(), methods=["medusa"], sizes="16")
    plan, service = load_plan(given), Service(None)
    try:
        served = serve(plan, plan.serving.jobs(), service, threading.Event())
        made = {job.line: {job.batch: trace} for job, _, trace in served if trace is not None}
    finally:
        service.close()
    rows = plan.serving.result(made)["methods"]
    assert list(rows) == ["autoregressive", "medusa"]
    for key, method in rows.items():
        for figures in (method["batches"]["16"], stored[key]["batches"]["16"]):
            figures.pop("run")
        assert method["batches"]["16"] == pytest.approx(stored[key]["batches"]["16"]), key


def test_a_question_with_the_examples_settings_gives_its_options(service) -> None:
    stored = read("advise")["result"]["batches"][0]["options"]
    asked = question_of(replace(advise.usual_settings(), batches="1"), service)
    found = answer.advise(replace(asked, methods=("speculative",))).at(1)
    expected = [row for row in stored if row["method"] in ("speculative", "autoregressive")]
    for made, row in zip(found, expected, strict=True):
        assert {**made.facts(), "runs": None} == {**row, "runs": None}
