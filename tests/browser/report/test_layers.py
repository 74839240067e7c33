"""Layer groups and calibration in a report: a fuzzy draft, and the layers of each device."""

import re

import pytest
from playwright.sync_api import expect

from specscope.traces.view.document import view_model
from specscope.traces.view.layers import layers
from tests.browser.report.opened import centre_of
from tests.traces.samples import sample_trace
from tests.traces.test_layers import easyspec

pytestmark = pytest.mark.browser
VIEW = ".ss-layers"


@pytest.fixture(scope="module")
def trace(beside):
    return beside(easyspec, gamma=3)


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("speculative"), trace]


@pytest.fixture
def page(page):
    page.wait_for_selector(f"{VIEW} .ss-layers-bar")
    return page


def bars(page):
    """Return the look, words, place and size of every bar."""
    return page.locator(f"{VIEW} .ss-layers-bar").evaluate_all(
        """(nodes) => nodes.map((node) => { const box = node.querySelector("rect").getBoundingClientRect();
            return { look: node.getAttribute("class").split("ss-layers-")[2], title: node.querySelector("title").textContent,
                x: box.x, y: box.y, right: box.right }; })"""
    )  # fmt: skip


def test_only_the_fuzzy_run_has_the_view_and_names_its_groups(page):
    expect(page.locator(VIEW)).to_have_count(1)
    expect(page.locator(f"{VIEW} .ss-note")).to_have_text(
        "3 devices; groups of layers 1–3; every other layer is computed alone"
    )


def test_layers_of_a_group_are_one_below_the_other_on_different_devices(page):
    drawn = bars(page)
    assert [b["look"] for b in drawn] == ["calibrate", "draft", "draft", *["attention", "exchange"] * 3]
    attention = [b for b in drawn if b["look"] == "attention"]
    assert [b["title"] for b in attention] == [f"attention of layer {i}: 0.050 ms" for i in (1, 2, 3)]
    assert len({round(b["x"]) for b in attention}) == len({round(b["right"]) for b in attention}) == 1
    assert len({b["y"] for b in attention}) == 3
    for one, exchange in zip(attention, [b for b in drawn if b["look"] == "exchange"], strict=True):
        assert exchange["y"] == one["y"]
        assert exchange["x"] >= one["right"] - 1
    draft = drawn[:3]
    assert draft[0]["right"] - draft[0]["x"] == pytest.approx(
        2.5 * (draft[1]["right"] - draft[1]["x"]), rel=0.03
    )


def test_replay_and_pointing_choose_the_round(page, trace):
    note = page.locator(f"{VIEW} .ss-detail")
    rounds = layers(trace)["rounds"]
    page.evaluate("view.seek(0)")
    expect(note).to_contain_text("Step 1: an exact forward of 1 row, then 2 fuzzy forwards.")
    page.evaluate("(t) => view.seek(t)", rounds[1]["spans"]["start"][0] + 0.01)
    expect(note).to_contain_text("Step 2: an exact forward of 4 rows, then 2 fuzzy forwards.")
    page.evaluate("view.seek(1e9)")
    expect(note).to_contain_text(f"Step {rounds[-1]['step']}:")
    page.mouse.move(*centre_of(page, 1, rounds[0]["spans"]["id"][0]))
    expect(note).to_contain_text("Step 1:")
    page.mouse.move(1, 1)
    expect(note).to_contain_text(f"Step {rounds[-1]['step']}:")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_layers_fit_in_both_themes_and_have_a_label(opened, trace, theme):
    with opened.looking(theme, 800):
        opened.show(view_model([trace]))
        page = opened.ready()
        svg = page.locator(f"{VIEW} svg")
        assert re.match(
            r"Step 3: an exact forward of 4 rows, then 2 fuzzy forwards\.", svg.get_attribute("aria-label")
        )
        box = svg.bounding_box()
        assert all(box["x"] - 1 <= b["x"] and b["right"] <= box["x"] + box["width"] + 1 for b in bars(page))
        assert page.evaluate("document.documentElement.scrollWidth") <= 800
