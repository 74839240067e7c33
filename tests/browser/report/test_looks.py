"""A report with every view, in both themes and three widths: axe, and no sideways scrolling."""

import pytest

from tests.browser.looks import assert_looks
from tests.browser.report.opened import Opened
from tests.traces.samples import KINDS, sample_trace

pytestmark = pytest.mark.browser


def test_every_view_is_readable_and_fits_every_window(opened, runs):
    page = opened.runs(list(runs.values()))
    folds = page.locator("#viewer details:not(.ss-menu)")
    for _ in range(2):  # the fold with the timeline's tables has folds, which it makes when it opens
        folds.evaluate_all("(all) => all.forEach((fold) => { fold.open = true; })")
        page.locator(".ss-tables details details").first.wait_for()
    page.locator(".ss-gantt").focus()
    page.keyboard.press("x")
    page.locator(".ss-range:visible").wait_for()
    assert_looks(page)
    page.locator(".ss-tree").get_by_role("button", name="Open large").first.click()
    assert_looks(page, ".ss-large")
    page.keyboard.press("Escape")


def test_the_tables_of_many_runs_scroll_inside_a_narrow_report(chromium, tmp_path):
    report = Opened(chromium, tmp_path, [sample_trace(kind, tokens=4) for kind in KINDS], width=400)
    page = report.ready()
    page.locator("#summary > summary").click()
    assert_looks(page, "#summary")
    page.set_viewport_size({"width": 400, "height": 950})
    table = page.get_by_role("group", name="All figures")
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("(table) => table.scrollLeft > 0", arg=table.element_handle())
    assert report.complaints == []
    page.close()
