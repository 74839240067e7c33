"""Other files with the viewer or a chart: frames of a notebook, the file of a sweep."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import specscope
from specscope.app.render.lab import page as sweep_page
from specscope.engine.methods import find
from specscope.traces.lab.axes import axis
from specscope.traces.lab.points import points_of
from specscope.traces.lab.sweep import ScriptedRunner, Sweep, sweep
from tests.browser.looks import assert_looks
from tests.browser.report.opened import Opened
from tests.traces.samples import sample_trace

pytestmark = pytest.mark.browser
HOSTILE = "</script><script>parent.seen = 1</script><img src='https://example.com/x.png'>"
PAGE = '<!doctype html><meta charset="utf-8"><title>secret</title><body>'


@pytest.fixture
def visited(chromium):
    """Show HTML in a page of an address of its own; return the page and what it asked for."""
    contexts = []

    def visit(html: str, **options):
        context = chromium.new_context(**options)
        contexts.append(context)
        page, asked = context.new_page(), []
        page.on("pageerror", lambda error: asked.append(str(error)))
        page.on("console", lambda message: asked.append(message.text))
        context.route("**/*", lambda route: (asked.append(route.request.url), route.abort()))
        page.set_content(PAGE + html)
        return page, asked

    yield visit
    for context in contexts:
        context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_trace_is_drawn_in_a_frame_that_asks_for_nothing_and_sees_nothing_of_the_page(visited, theme):
    trace = sample_trace("pearl")
    trace.pieces = dict.fromkeys(trace.pieces, HOSTILE)
    page, asked = visited(trace._repr_html_(), color_scheme=theme)
    frame = page.locator("iframe").content_frame
    frame.locator(".ss-gantt canvas").first.wait_for()
    expect(frame.get_by_role("button", name="fit")).to_be_visible()
    expect(frame.get_by_role("button", name="link", exact=True)).to_be_hidden()
    look = "matchMedia('(prefers-color-scheme: dark)').matches"
    assert frame.locator("body").evaluate(f"() => {look}") is (theme == "dark")
    blocked = """() => { try { return parent.document.title } catch (error) { return error.name } }"""
    assert frame.locator("body").evaluate(blocked) == "SecurityError"
    assert page.evaluate("window.seen") is None
    assert asked == []
    frame.locator("body").evaluate("() => fetch('https://example.com/sent').catch(() => {})")
    assert "Content Security Policy" in " ".join(asked)
    assert "https://example.com/sent" not in asked


def test_without_scripts_the_figures_are_shown(visited):
    traces = [sample_trace("speculative"), sample_trace("pearl")]
    page, _ = visited(traces[1]._repr_html_(), java_script_enabled=False)
    expect(page.locator("td").first).to_be_visible()
    expect(page.locator("iframe").content_frame.get_by_text("The timeline needs scripts")).to_be_visible()
    page, _ = visited(specscope.diff(*traces)._repr_html_(), java_script_enabled=False)
    expect(page.locator("iframe").content_frame.locator("td").first).to_be_visible()


def test_the_waterfalls_of_a_difference_are_drawn(visited):
    found = specscope.diff(sample_trace("speculative"), sample_trace("pearl"))
    page, asked = visited(found._repr_html_())
    frame = page.locator("iframe").content_frame
    expect(frame.get_by_role("heading", name="Waterfalls")).to_be_visible()
    expect(page.locator("td").first).to_be_hidden()
    page.get_by_text("The figures as a table").click()
    expect(page.locator("td").first).to_be_visible()
    assert asked == []


# The file that `specscope sweep -o` writes, opened from disk.


PROFILE, PAIR = "8xA100", "llama-3-8-70-tp8"


def test_the_file_of_a_sweep_has_map_chart_and_points_in_all_looks(chromium, beside, tmp_path):
    method = find("speculative")
    columns, rows = axis(method, "gamma", "1:8"), axis(method, "acceptance_rate", "0.8,0.9")
    plan = Sweep("speculative", columns, rows, {}, samples=2, passes=1, measured=False)
    cells = beside(lambda: list(sweep(plan, ScriptedRunner(PROFILE, PAIR, 8))))
    report = Opened(chromium, tmp_path, sweep_page(plan, cells, points_of(plan, PROFILE, PAIR)), width=400)
    page = report.page
    page.locator(".main-svg").first.wait_for()
    expect(page.locator(".app-heat td span")).to_have_count(16)
    expect(page.locator(".app-point")).to_have_count(3)
    expect(page.locator(".app-points li")).to_have_count(5)
    expect(page.locator(".legendtext")).to_have_text(["acceptance rate 0.8", "acceptance rate 0.9", "papers"])
    assert_looks(page)
    for theme, ink, line in (
        ("dark", "rgb(230, 233, 240)", "rgb(86, 180, 233)"),
        ("light", "rgb(29, 36, 51)", "rgb(0, 114, 178)"),
    ):
        page.emulate_media(color_scheme=theme)
        expect(page.locator(".xtitle")).to_have_css("fill", ink)
        expect(page.locator(".scatterlayer .js-line").first).to_have_css("stroke", line)
    assert report.complaints == []
    page.close()
