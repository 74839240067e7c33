"""The file that `specscope sweep -o` writes, opened from disk."""

import pytest
from playwright.sync_api import expect

from specscope.app.render.lab import page as sweep_page
from specscope.engine.methods import find
from specscope.traces.lab.axes import axis
from specscope.traces.lab.points import points_of
from specscope.traces.lab.sweep import Scripted, Sweep, sweep
from tests.browser.looks import assert_looks
from tests.browser.report.opened import Opened

pytestmark = pytest.mark.browser
LINES = """(node) => {
    const [{ line, meta }] = JSON.parse(node.dataset.figure).data;
    return [node.data[0].line.color, line.color, meta.dark];
}"""
"""Return the colour of a chart's first line, and those that it has on light and on dark ground."""
PROFILE, PAIR = "8xA100", "llama-3-8-70-tp8"


def test_the_file_of_a_sweep_has_map_chart_and_points_in_all_looks(chromium, beside, tmp_path):
    method = find("speculative")
    columns, rows = axis(method, "gamma", "1:8"), axis(method, "acceptance_rate", "0.8,0.9")
    plan = Sweep("speculative", columns, rows, {}, samples=2, passes=1, measured=False)
    cells = beside(lambda: list(sweep(plan, Scripted(PROFILE, PAIR, 8))))
    report = Opened(chromium, tmp_path, sweep_page(plan, cells, points_of(plan, PROFILE, PAIR)), width=400)
    page = report.page
    page.locator(".main-svg").first.wait_for()
    expect(page.locator(".app-heat td span")).to_have_count(16)
    expect(page.locator(".app-point")).to_have_count(3)
    expect(page.locator(".app-points li")).to_have_count(5)
    expect(page.locator(".legendtext")).to_have_text(["acceptance rate 0.8", "acceptance rate 0.9", "papers"])
    assert_looks(page)
    for theme, ink in (("dark", "rgb(230, 233, 240)"), ("light", "rgb(29, 36, 51)")):
        page.emulate_media(color_scheme=theme)
        expect(page.locator(".xtitle")).to_have_css("fill", ink)
        drawn, *wanted = page.locator("[data-figure]").evaluate(LINES)
        assert drawn == wanted[theme == "dark"] != wanted[theme == "light"], theme
    assert report.complaints == []
    page.close()
