"""The timeline of a report: pointing, keys, zoom, merged bars, and its table."""

import pytest
from playwright.sync_api import expect

from tests.browser.report.opened import centre_of, drawn_after, pane, window
from tests.traces.samples import sample_trace
from traces.view.document import view_model

pytestmark = pytest.mark.browser


def test_pointing_at_a_span_marks_its_tokens_and_a_click_pins_it(page, traces):
    span = next(s for s in traces[1].spans if s.kind == "verify")
    x, y = centre_of(page, 1, span.id)
    page.mouse.move(x, y)
    decided = [d for d in traces[1].decisions if d.verify_span == span.id]
    assert pane(page, 1).locator(".ss-lit").count() == len(decided)
    assert page.locator(".ss-light-strong").count() == 1
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(1, 1)
    assert "pinned" in page.locator(".ss-float").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".ss-float").is_hidden()


def test_keys_act_only_inside_the_viewer(page):
    page.locator("h1").click()
    before = window(page)
    page.keyboard.press("w")
    page.wait_for_timeout(300)
    assert window(page) == before
    page.locator(".ss-gantt").focus()
    drawn_after(page, lambda: page.keyboard.press("w"))
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (before[1] - before[0]))
    page.keyboard.press(".")
    assert "GPU 1 · target" in page.locator(".ss-float").inner_text()
    page.keyboard.press("ArrowDown")
    assert "GPU 0 · drafter" in page.locator(".ss-float").inner_text()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.get_by_role("button", name="Close").click()
    page.locator(".ss-gantt").focus()
    drawn_after(page, lambda: page.keyboard.press("f"))
    assert window(page) == before


def test_dragging_zooms_all_runs_and_a_double_click_fits(page):
    before = window(page)
    box = page.locator(".ss-plot").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 92, steps=4)
    drawn_after(page, page.mouse.up)
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx((before[1] - before[0]) * 200 / box["width"], rel=0.05)
    assert page.evaluate("document.querySelector('.ss-plot')._fullLayout.xaxis3.range") == zoomed
    drawn_after(page, lambda: page.mouse.dblclick(box["x"] + 300, box["y"] + 90))
    assert window(page) == before


def test_too_many_bars_become_shares_with_a_note(opened):
    trace = sample_trace("speculative", tokens=2400)
    model = view_model([trace])
    page = opened.show(model)
    page.wait_for_selector("#viewer[data-drawn]")
    assert "too many for one view" in page.locator(".ss-detail").inner_text()
    bars = page.evaluate(
        "document.querySelector('.ss-plot').data.reduce((n, t) => n + (t.type === 'bar' ? t.x.length : 0), 0)"
    )
    assert bars <= 5500
    page.locator(".ss-gantt").focus()
    for _ in range(8):
        page.keyboard.press("w")
    # A slow machine may draw between two presses: wait for the drawing after the last one.
    # (`wait_for_function` polls with eval, which the report's content security policy forbids.)
    expect(page.locator(".ss-detail")).to_have_text("")


def test_shares_add_up_to_the_work(opened):
    looks = [
        {"kind": "draft", "bars": [{"start": 0, "end": 3, "lane": 0}, {"start": 5, "end": 6, "lane": 0}]},
        {"kind": "verify", "bars": [{"start": 3, "end": 5, "lane": 0}]},
    ]
    first, second = opened.page.evaluate("(looks) => SpecScope.shareBars(looks, 0, 8, 2)", looks)
    assert first["bars"] == [
        {"start": 0, "end": 4, "lane": 0, "low": 0, "high": 0.75},
        {"start": 4, "end": 8, "lane": 0, "low": 0, "high": 0.25},
    ]
    assert second["bars"] == [
        {"start": 0, "end": 4, "lane": 0, "low": 0.75, "high": 1},
        {"start": 4, "end": 8, "lane": 0, "low": 0.25, "high": 0.5},
    ]


def test_the_table_has_the_data_of_the_timeline(page, traces):
    page.get_by_text("The timeline as a table").click()
    lines = page.locator("table", has_text="Work and waiting per device, PEARL").locator("tbody tr")
    lines.first.wait_for()  # the table is filled once its fold is open
    rows = lines.all_inner_texts()
    verifies = [s for s in traces[2].spans if s.kind == "verify"]
    row = next(r.split("\t") for r in rows if r.split("\t")[:2] == ["GPU 1 · target", "verify"])
    assert row[2] == str(len(verifies))
    assert row[3] == f"{sum(s.end - s.start for s in verifies) / 1e6:.1f} ms"
    assert any("waits for the drafter" in r for r in rows)
