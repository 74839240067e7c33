"""What a notebook shows: the viewer in a frame that reaches nothing, a table without scripts."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import specscope
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
