"""The Load tab in a browser: a series that is stopped, one by keyboard alone, and its looks."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.looks import assert_looks
from tests.browser.playground.steps import fill
from tests.browser.playground.test_lab import reach


def test_a_series_is_stopped_and_another_is_started_and_opened_by_keys(page: Page, window) -> None:
    page.get_by_role("tab", name="Load").click()
    card, message = page.locator("#load"), page.locator("#load-message")
    rows = page.locator("#load-result tbody tr")
    page.locator('#load-result [data-state="example"]').wait_for()
    expect(page.locator("#load-stop")).to_be_disabled()
    fill(card.get_by_role("spinbutton", name="New tokens of each"), "128")
    page.locator("#load-start").click()
    expect(message).to_contain_text("requests have their first token")
    page.locator("#load-stop").click()
    expect(message).to_contain_text("stopped")
    expect(page.locator("#load-stop")).to_be_disabled()

    fill(card.get_by_role("spinbutton", name="New tokens of each"), "4")
    fill(card.get_by_role("spinbutton", name="Requests", exact=True), "3")
    fill(card.get_by_role("textbox", name="Batch sizes"), "0")
    reach(page, page.locator("#load-start"))
    page.keyboard.press("Enter")
    expect(message.get_by_role("alert")).to_contain_text("a batch size is 0; it must be at least 1")
    fill(card.get_by_role("textbox", name="Batch sizes"), "1, 2")
    reach(page, page.locator("#load-start"))
    page.keyboard.press("Enter")
    expect(message).to_contain_text("8 runs.")
    expect(rows).to_have_count(8)
    page.locator("#load-result .app-figure .main-svg").last.wait_for()
    assert_looks(page, "#load")

    reach(page, rows.first.get_by_role("link"))
    window.settle()
    page.keyboard.press("Enter")
    page.locator("#history-viewer .ss-pane").wait_for()
    expect(page.locator("#history-viewer")).to_contain_text("requests that wait")
