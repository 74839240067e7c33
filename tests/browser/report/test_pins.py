"""Pinned tracks in the timeline of a report."""

from urllib.parse import parse_qs

import pytest
from playwright.sync_api import expect

from specscope.traces.view.document import view_model
from tests.browser.report.opened import centre_of, drawn_after

pytestmark = pytest.mark.browser

INKED = """() => {
    const canvas = document.querySelector(".ss-pins-plot");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value, i) => i % 4 === 3 && value > 0);
}"""


def test_a_pinned_track_stays_in_view_and_is_in_the_link(page, opened, traces):
    pins = page.get_by_role("region", name="Pinned tracks")
    expect(pins).to_be_hidden()
    page.locator(".ss-menu > summary").click()
    page.get_by_role("button", name="Pin GPU 0 · drafter").nth(1).click()
    expect(page.get_by_role("button", name="Pin GPU 0 · drafter").nth(1)).to_be_focused()
    page.keyboard.press("Escape")
    expect(pins).to_contain_text("PEARL")
    page.mouse.move(*centre_of(page, 0, next(s.id for s in traces[0].spans if s.kind == "verify")))
    drawn_after(page, lambda: page.keyboard.press("t"))
    expect(pins.get_by_role("button")).to_have_count(2)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    page.locator(".ss-gantt-card").last.scroll_into_view_if_needed()
    assert pins.bounding_box()["y"] == pytest.approx(0, abs=1)
    assert page.evaluate(INKED)
    frame = page.locator(".ss-pins-plot").bounding_box()
    page.mouse.move(frame["x"] + frame["width"] / 3, frame["y"] + 13)
    expect(page.locator(".ss-float")).to_contain_text("GPU 0 · drafter")
    page.get_by_role("button", name="link").click()
    assert parse_qs(page.evaluate("location.hash.slice(1)"))["pins"] == ["2.0,0.0"]
    opened.show(view_model(traces), fragment="pins=0.0,__proto__.length,9.9")
    expect(pins.get_by_role("button")).to_have_count(1)
    pins.get_by_role("button").click()
    expect(pins).to_be_hidden()
