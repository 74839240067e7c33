"""A long run in the viewer: bins, then the rows of the window, then the whole document."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from specscope.app.jobs import windows
from specscope.traces.database.store import Store
from specscope.traces.view.document import view_model
from specscope.traces.view.packed import packed
from tests.browser.report.opened import window, zoomed
from tests.browser.report.test_states import CLEAN, named
from tests.traces.samples import sample_trace

PATIENCE = 60_000
"""Longest wait for a text, in ms."""
MOUNT = """async ([text, fragment]) => {
    window.view.destroy();
    const root = document.getElementById("viewer");
    for (const key of Object.keys(root.dataset)) delete root.dataset[key];
    const get = async (kind, query) => JSON.parse(await answer(kind, query));
    const hold = new Promise((go) => { window.release = go; });
    const source = {
        window: async (query) => { const found = await get("window", query); await window.late; return found; },
        whole: async () => { await hold; return get("whole", ""); },
        aligned: (query) => get("aligned", query),
    };
    window.view = SpecScope.mount(root, JSON.parse(text), { source, fragment });
}"""


@contextmanager
def serving(file, answers, traces, **few):
    """Answer as a server with these runs, of which `few` spans are shown at once."""
    with Store(file) as store, pytest.MonkeyPatch.context() as patched:
        store.insert(*traces)
        for name, number in few.items():
            patched.setattr(windows, name, number)
        server = windows.Windows(SimpleNamespace(store=store, find=lambda _: None))

        def ask(query):
            asked = {name: values[0] for name, values in parse_qs(query).items()}
            numbers = (float(asked[name]) for name in ("low", "high", "margin"))
            return server.window(asked["run"], *numbers, int(asked["bins"]), rows=asked["rows"] == "true")

        def align(query):
            asked = {name: values[0] for name, values in parse_qs(query).items()}
            low, high = float(asked["low"]), float(asked["high"])
            return server.aligned(asked["runs"], int(asked["sequence"]), low, high)

        whole, before = packed(view_model(traces[:1])), dict(answers)
        answers.update(window=ask, aligned=align, whole=lambda _: whole)
        yield server
        answers.update(before)


@pytest.fixture(scope="module")
def traces():
    trace = sample_trace("pearl", tokens=500)
    trace.header = replace(trace.header, run_id="long")
    commits = [replace(commit, time=commit.time + 5_000_000) for commit in trace.commits]
    return [trace, replace(trace, header=replace(trace.header, run_id="later"), commits=commits)]


@pytest.fixture(scope="module")
def answers(opened):
    """Return what the page is answered, by the kind of its question."""
    by_kind = {}
    opened.page.expose_function("answer", lambda kind, query: json.dumps(by_kind[kind](query)))
    return by_kind


@pytest.fixture(scope="module")
def long_page(opened, answers, traces, tmp_path_factory):
    """Return the page, and the documents with which one long run or two open."""
    file = tmp_path_factory.mktemp("windows") / "traces.db"
    with serving(file, answers, traces, MOST_SPANS=150) as server:
        yield opened.page, [json.dumps(server.document(names)) for names in ("long", "long,later")]


@pytest.fixture
def shown(long_page):
    page, (opening, _) = long_page
    page.evaluate(MOUNT, [opening, ""])
    expect(page.locator(".ss-gantt ~ .ss-detail")).to_contain_text("bars", timeout=PATIENCE)
    return page


def test_a_long_run_opens_with_bins_zooming_loads_rows_and_the_whole_document_keeps_the_window(shown, traces):
    spans, detail = len(traces[0].spans), shown.locator(".ss-gantt ~ .ss-detail")
    assert f"{spans} bars are too many" in detail.inner_text()
    assert f"{spans} spans: the timeline loads what it shows" in shown.locator(".ss-long").inner_text()
    assert "of 500, those of the loaded part" in shown.locator(".ss-pane .ss-message").inner_text()
    assert not shown.locator(".ss-tables").is_visible()
    shown.locator(".ss-gantt").press("x")
    assert "The range holds more than the loaded part" in shown.locator(".ss-range").inner_text()
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
    assert shown.evaluate("document.querySelectorAll('.ss-token').length") >= 500


def test_a_whole_document_that_comes_after_other_runs_were_opened_is_left(shown):
    expect(shown.locator(".ss-long")).to_contain_text("The whole run is loading")
    other = json.dumps(packed(view_model([sample_trace("autoregressive")])))
    shown.evaluate("(text) => view.update(JSON.parse(text))", other)
    shown.evaluate("async () => { release(); await answer('whole', ''); await new Promise(setTimeout); }")
    expect(shown.locator(".ss-pane-head")).to_contain_text("Autoregressive")


def test_a_link_to_a_token_outside_of_the_part_is_followed_when_the_whole_run_is_here(long_page):
    page, (opening, _) = long_page
    page.evaluate(MOUNT, [opening, "token=0.450"])
    page.wait_for_selector("#viewer[data-drawn]")
    assert page.locator(".ss-token[data-index='450']").count() == 0
    page.evaluate("release()")
    page.wait_for_selector(".ss-token[data-index='450'].ss-lit")


def test_two_long_runs_are_compared_token_by_token_in_the_window(long_page, traces):
    page, (_, opening) = long_page
    page.evaluate(MOUNT, [opening, ""])
    view = page.get_by_role("region", name="Token by token")
    expect(view).to_contain_text("Tokens 1 to 500 of 500: those that PEARL", timeout=PATIENCE)
    page.evaluate("() => { window.late = new Promise((arrive) => { window.arrive = arrive; }); }")
    low, high = zoomed(page, 5)
    tokens = view_model(traces[:1])["runs"][0]["tokens"]
    inside = [token["index"] + 1 for token in tokens if low <= token["t"] <= high]
    expect(view).to_contain_text(f"Tokens {inside[0]} to {inside[-1]} of 500", timeout=PATIENCE)
    view.get_by_role("group", name="Tokens of all runs by position").focus()
    page.keyboard.press("ArrowDown")
    status = view.get_by_role("status")
    expect(status).to_contain_text(f"Token {inside[0]}, ")
    expect(status).to_contain_text("5.00 ms behind PEARL")
    loaded = page.locator(".ss-pane .ss-message").first
    before = loaded.inner_text()
    page.evaluate("arrive(window.late = undefined)")
    expect(loaded).not_to_have_text(before, timeout=PATIENCE)
    expect(status).to_contain_text("5.00 ms behind PEARL")
    zoomed(page, 1)
    expect(status).to_contain_text("Point at a token", timeout=PATIENCE)


def test_the_caches_of_a_part_name_what_lies_outside_of_it(long_page, traces):
    page, (opening, _) = long_page
    page.evaluate(MOUNT, [opening, ""])
    view = page.get_by_role("region", name="KV caches")
    expect(view).to_contain_text("in the last step of the loaded part: the replay's time is after it")
    zoomed(page, 5)
    expect(view).to_contain_text("cached before the loaded part", timeout=PATIENCE)
    page.evaluate("view.seek(0)")
    expect(view).to_contain_text("in the first step of the loaded part: the replay's time is before it")
    low, high = window(page)
    page.evaluate("(t) => view.seek(t)", (low + high) / 2)
    expect(view).to_contain_text("in the step of the replay's time")


def test_devices_with_names_of_all_objects_are_drawn_in_windows(opened, answers, tmp_path):
    trace = named("pearl", "constructor", "__proto__", 500)
    # a third device, which works at the end only: most windows do not name it
    late = replace(trace.header.devices[1], name="toString", label="toString")
    trace.header = replace(trace.header, devices=(*trace.header.devices, late))
    trace.spans.append(replace(trace.spans[-1], id=10**6, device="toString"))
    page = opened.page
    with serving(tmp_path / "traces.db", answers, [trace], MOST_SPANS=10, LONG=100) as server:
        before = page.evaluate(CLEAN)
        page.evaluate(MOUNT, [json.dumps(server.document("constructor")), ""])
        opened.ready()
        page.wait_for_function("() => document.querySelector('#viewer').innerText.includes('toString')")
        zoomed(page, 3)
        assert page.evaluate(CLEAN) == before
