"""The Lab in a browser: a sweep that is stopped keeps its cells, and the next one starts."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.browser.playground.steps import fill


def choose(card: Locator, name: str, option: str) -> None:
    """Choose an option of a list."""
    card.get_by_role("combobox", name=name).click()
    card.page.get_by_role("option", name=option).first.click()


def test_stop_ends_the_sweep_keeps_its_cells_and_the_next_sweep_starts(page: Page) -> None:
    """The first sweep has 60 cells of 512 tokens, so that it cannot end before Stop is pressed."""
    page.get_by_role("tab", name="Lab").click()
    card, message = page.locator("#lab"), page.locator("#lab-message")
    choose(card, "Cluster", "8 × A100 80GB")
    choose(card, "Method", "Speculative decoding")
    expect(card.get_by_role("combobox", name="Sweep over")).to_have_value("gamma")
    choose(card, "Modelled pair", "Llama 3 8B / 70B, target at TP = 8")
    fill(card.get_by_role("textbox", name="Rates or values"), "0.6, 0.7, 0.8, 0.9, 1")
    fill(card.get_by_role("textbox", name="Values", exact=True), "1-12")
    fill(card.get_by_role("spinbutton", name="Tokens"), "512")
    fill(card.get_by_role("spinbutton", name="Seeds"), "1")
    page.locator("#lab-start").click()
    cells = page.locator("#lab-map .app-heat td a")
    cells.first.wait_for()
    page.locator("#lab-stop").click()
    expect(message).to_contain_text("Stopped after")
    done = cells.count()
    assert 1 <= done < 60
    expect(message).to_contain_text(f"Stopped after {done} of 60 cells.")
    expect(page.locator("#lab-map .ss-badge")).to_have_text("virtual · 8xA100 · llama-3-8-70-tp8")
    expect(page.locator("#lab-map .app-point")).to_have_count(5)

    fill(card.get_by_role("spinbutton", name="Tokens"), "8")
    fill(card.get_by_role("textbox", name="Rates or values"), "0.9")
    fill(card.get_by_role("textbox", name="Values", exact=True), "5, 6")
    page.locator("#lab-start").click()
    expect(message).to_have_text("2 cells.")
    expect(cells).to_have_count(2)
    page.locator("#lab-map .app-figure .main-svg").first.wait_for()
    marks = page.locator("#lab-map .app-point")
    expect(marks).to_have_count(0)
    expect(page.locator("#lab-map .app-points")).to_contain_text("(outside of the map)")

    cells.first.click()
    page.locator("#history-viewer .ss-pane").nth(1).wait_for()
    expect(page.locator("#history-viewer .ss-pane")).to_have_count(2)
