"""A long run in the viewer: all spans, then tokens of the window, then the whole document."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from playwright.sync_api import expect

from specscope.app.jobs import long
from specscope.traces.database.store import Store
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import packed
from tests.browser.report.opened import window, zoomed
from tests.browser.report.test_states import CLEAN, named
from tests.traces.samples import sample_trace

TOKENS = 1500
PATIENCE = 60_000
"""Longest wait for a text, in ms."""
MOUNT = """async ([text, fragment]) => {
    window.view.destroy();
    const root = document.getElementById("viewer");
    for (const key of Object.keys(root.dataset)) delete root.dataset[key];
    const get = async (kind, ...asked) => JSON.parse(await answer(kind, asked));
    const hold = new Promise((go) => { window.release = go; });
    const source = {
        spans: (run) => get("spans", run),
        rounds: (...asked) => get("rounds", ...asked),
        whole: async () => { await hold; return get("whole"); },
    };
    window.view = SpecScope.mount(root, JSON.parse(text), { source, fragment });
}"""


@contextmanager
def serving(file, answers, traces):
    """Answer as a server with these runs."""
    with Store(file) as store:
        store.insert(*traces)
        server = long.LongRuns(SimpleNamespace(store=store, find=lambda _: None))
        whole, before = packed(view_model(traces[:1])), dict(answers)
        answers.update(spans=server.spans, rounds=server.rounds, whole=lambda: whole)
        yield server
        answers.update(before)


@pytest.fixture(scope="module")
def traces():
    trace = sample_trace("pearl", tokens=TOKENS)
    trace.header = replace(trace.header, run_id="long")
    commits = [replace(commit, time=commit.time + 5_000_000) for commit in trace.commits]
    return [trace, replace(trace, header=replace(trace.header, run_id="later"), commits=commits)]


@pytest.fixture(scope="module")
def answers(opened):
    """Return what the page is answered, by the kind of its question."""
    by_kind = {}
    opened.page.expose_function("answer", lambda kind, asked: json.dumps(by_kind[kind](*asked)))
    return by_kind


@pytest.fixture(scope="module")
def long_page(opened, answers, traces, tmp_path_factory):
    """Return the page, and the documents with which one long run or two open."""
    file = tmp_path_factory.mktemp("long") / "traces.db"
    with serving(file, answers, traces) as server:
        yield opened.page, [server.document(names) for names in ("long", "long,later")]


def mounted(page, document, fragment="", **size):
    """Show a document; `size` are numbers of its runs that are changed."""
    runs = [{**run, "long": {**run["long"], **size}} for run in document["runs"]]
    page.evaluate(MOUNT, [json.dumps({**document, "runs": runs}), fragment])


@pytest.fixture
def shown(long_page):
    page, (opening, _) = long_page
    mounted(page, opening)
    expect(page.locator(".ss-gantt ~ .ss-detail")).to_contain_text("bars", timeout=PATIENCE)
    return page


def test_a_long_run_opens_with_all_spans_zooming_loads_tokens_and_the_whole_document_keeps_the_window(
    shown, traces
):
    spans, detail = len(traces[0].spans), shown.locator(".ss-gantt ~ .ss-detail")
    assert f"{spans} bars are too many" in detail.inner_text()
    assert f"{spans} spans: tokens are loaded" in shown.locator(".ss-long").inner_text()
    assert f"of {TOKENS}, those of the loaded part" in shown.locator(".ss-pane .ss-message").inner_text()
    assert shown.get_attribute("#viewer", "data-marks") == "0"
    assert not shown.locator(".ss-tables").is_visible()
    shown.locator(".ss-gantt").press("x")
    assert "The waits of the run are loading" in shown.locator(".ss-range").inner_text()
    shown.keyboard.press("Escape")
    (run,) = view_model(traces[:1])["runs"]
    low, high = zoomed(shown, 5)
    shown.wait_for_selector('#viewer:not([data-marks="0"])')
    assert low < run["to"] / 2 < high
    marks = int(shown.get_attribute("#viewer", "data-marks"))
    assert marks <= sum(low - 5 < row["t"] < high + 5 for row in (*run["tokens"], *run["ghosts"]))
    first = next(token for token in run["tokens"] if token["t"] >= low)
    shown.wait_for_selector(f".ss-token[data-index='{first['index']}']")
    shown.evaluate("release()")
    shown.locator(".ss-tables").wait_for()
    assert window(shown) == [low, high]
    assert not shown.locator(".ss-long").is_visible()
    assert shown.locator(".ss-pane .ss-message").is_hidden()


def test_steps_reach_every_span_and_rejection_of_a_long_run(shown, traces):
    (run,) = view_model(traces[:1])["runs"]
    late = next(row for row in run["rounds"] if row["t"] > run["to"] / 2 and row["accepted"] < row["drafted"])
    shown.evaluate("(t) => view.seek(t)", late["t"] - 0.001)
    shown.locator(".ss-gantt").press("n")
    assert float(shown.get_attribute("#viewer", "data-time")) == late["t"]
    shown.get_by_role("searchbox").fill(f"step {late['step']}")
    shown.get_by_role("searchbox").press("Enter")
    expect(shown.locator(".ss-float")).to_contain_text(str(late["step"]))


def test_waits_and_caches_of_a_very_long_run_come_before_the_whole_document(long_page):
    page, (opening, _) = long_page
    mounted(page, opening, spans=10**5)
    view = page.get_by_role("region", name="KV caches")
    expect(view).to_contain_text("at the end of a run, in its last step", timeout=PATIENCE)
    assert "Load the whole run" in page.locator(".ss-long").inner_text()
    page.locator(".ss-gantt").press("x")
    expect(page.locator(".ss-range")).to_contain_text("waits for the drafter")
    page.keyboard.press("Escape")


def test_a_whole_document_that_comes_after_other_runs_were_opened_is_left(shown):
    expect(shown.locator(".ss-long")).to_contain_text("The whole run is loading")
    other = json.dumps(packed(view_model([sample_trace("autoregressive")])))
    shown.evaluate("(text) => view.update(JSON.parse(text))", other)
    shown.evaluate("async () => { release(); await answer('whole', []); await new Promise(setTimeout); }")
    expect(shown.locator(".ss-pane-head")).to_contain_text("Autoregressive")


def test_a_link_to_a_token_outside_of_the_part_is_followed_when_the_whole_run_is_here(long_page):
    page, (opening, _) = long_page
    mounted(page, opening, "token=0.1450")
    page.wait_for_selector("#viewer[data-drawn]")
    assert page.locator(".ss-token[data-index='1450']").count() == 0
    page.evaluate("release()")
    page.wait_for_selector(".ss-token[data-index='1450'].ss-lit")


def test_two_long_runs_are_compared_token_by_token_in_the_window(long_page, traces):
    page, (_, opening) = long_page
    mounted(page, opening)
    view = page.get_by_role("region", name="Token by token")
    expect(view).to_contain_text(f"Tokens 1 to 600 of {TOKENS}: those that PEARL", timeout=PATIENCE)
    plot, card = view.get_by_role("group", name="Tokens of all runs by position"), page.locator(".ss-float")
    plot.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    tokens = view_model(traces[:1])["runs"][0]["tokens"]
    expect(card).to_contain_text(f"position{tokens[599]['position']}")
    expect(card).to_contain_text("target, top 5")
    page.keyboard.press("Escape")
    low, high = zoomed(page, 5)
    inside = [token["index"] + 1 for token in tokens if low <= token["t"] <= high]
    expect(view).to_contain_text(f"Tokens {inside[0]} to {inside[-1]} of {TOKENS}", timeout=PATIENCE)
    plot.blur()
    plot.focus()
    page.keyboard.press("ArrowDown")
    status = view.get_by_role("status")
    expect(status).to_contain_text(f"Token {inside[0]}, ")
    expect(status).to_contain_text("5.00 ms behind PEARL")
    page.evaluate("view.seek(0)")
    expect(status).to_contain_text("5.00 ms behind PEARL")
    zoomed(page, 1)
    expect(status).to_contain_text("Point at a token", timeout=PATIENCE)


def test_devices_with_names_of_all_objects_are_drawn(opened, answers, tmp_path):
    trace = named("pearl", "constructor", "__proto__", TOKENS)
    # a third device, which works at the end only
    late = replace(trace.header.devices[1], name="toString", label="toString")
    trace.header = replace(trace.header, devices=(*trace.header.devices, late))
    trace.spans.append(replace(trace.spans[-1], id=10**6, device="toString"))
    page = opened.page
    with serving(tmp_path / "traces.db", answers, [trace]) as server:
        before = page.evaluate(CLEAN)
        mounted(page, server.document("constructor"), spans=10**5)
        opened.ready()
        page.wait_for_function("() => document.querySelector('#viewer').innerText.includes('toString')")
        zoomed(page, 5)
        page.wait_for_selector('#viewer:not([data-marks="0"])')
        assert page.evaluate(CLEAN) == before
