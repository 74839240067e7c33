"""Calibration in a report: the diagram of a place, the table of all places, pointing and keys."""

import pytest
from playwright.sync_api import expect

from specscope.engine.types import Limits, Sampling
from specscope.traces.view.calibration import calibration_views
from specscope.traces.view.document import view_model
from tests.browser.report.opened import update
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser
VIEW = ".ss-calibration"
BIN = ".ss-calibration-bin"


@pytest.fixture(scope="module")
def trace(decode):
    return decode("speculative", "Tell me a story.", sampling=Sampling(0.7), limits=Limits(60))


@pytest.fixture(scope="module")
def traces(trace):
    return [sample_trace("autoregressive"), trace]


def test_the_table_has_every_place_and_the_diagram_the_chosen_one(page, trace):
    views = calibration_views(trace)
    expect(page.locator(VIEW)).to_have_count(1)
    lines = page.locator(f"{VIEW} tbody tr")
    expect(lines).to_have_count(len(views))
    for number, view in enumerate(views):
        expect(lines.nth(number)).to_contain_text(f"{view['error']:.3f}")
    for place in (0, 2, 1):
        view = next(v for v in views if v["place"] == place)
        page.locator(VIEW).get_by_role("button", name=f"place {place}" if place else "all places").click()
        expect(page.locator(BIN)).to_have_count(len(view["bins"]["low"]))
        expect(page.locator(f"{BIN} .ss-calibration-expected")).to_have_count(len(view["bins"]["low"]))
        name = f"Place {place}" if place else "All places"
        says = f"{name}: {view['tested']} tested tokens, q {view['q']:.2f} on average"
        expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text(says)


def test_pointing_and_keys_tell_of_a_bin(page, trace):
    bins = calibration_views(trace)[0]["bins"]
    page.locator(VIEW).get_by_role("button", name="all places").click()
    page.locator(BIN).nth(1).hover()
    says = f"{bins['accepted'][1]} of {bins['tested'][1]} tested tokens accepted"
    expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text(says)
    page.mouse.move(1, 1)
    expect(page.locator(f"{VIEW} .ss-detail")).to_contain_text("All places")
    page.locator(f"{BIN}[tabindex='0']").focus()
    page.keyboard.press("End")
    last = f"{bins['accepted'][-1]} of {bins['tested'][-1]} tested tokens accepted"
    assert last in page.evaluate("document.activeElement.getAttribute('aria-label')")
    expect(page.locator(f"{BIN}[tabindex='0']")).to_have_count(1)


def test_a_growing_run_keeps_its_place_and_its_focus(page, traces):
    page.locator(VIEW).get_by_role("button", name="place 2").focus()
    page.keyboard.press("Enter")
    update(page, traces)
    expect(page.locator(VIEW).get_by_role("button", name="place 2")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "place 2"


def test_at_temperature_0_nothing_is_expected_by_the_rule(opened, decode):
    trace = decode("speculative", "Hi", limits=Limits(20))
    page = opened.show(view_model([trace]))
    opened.ready()
    expect(page.locator(BIN).first).to_be_attached()
    expect(page.locator(f"{BIN} .ss-calibration-expected")).to_have_count(0)
    assert "expected" not in page.locator(f"{VIEW} thead").inner_text()
