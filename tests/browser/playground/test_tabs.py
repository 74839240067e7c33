"""The tabs of experiments and papers: stopped, started by keyboard alone, and their looks."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.looks import assert_looks
from tests.browser.playground.steps import fill


def choose(card: Locator, name: str, option: str) -> None:
    """Choose an option of a list."""
    card.get_by_role("combobox", name=name, exact=True).click()
    card.page.get_by_role("option", name=option).first.click()


def test_a_place_of_the_map_is_raced_and_opens_its_traces(page: Page, window) -> None:
    page.get_by_role("tab", name="Lab").click()
    card, picture = page.locator("#map"), page.locator("#map-picture")
    expect(picture.locator("svg")).to_have_attribute(
        "aria-label", "Fastest method by acceptance rate and drafter speed: runs"
    )
    expect(picture.locator("g.c")).to_have_count(4 * 48)
    choose(card, "Compare by", "per device")
    expect(picture.locator("svg")).to_have_attribute("aria-label", re.compile("per device$"))
    expect(picture.locator("g.c .n").first).to_contain_text("SD")
    choose(card, "Acceptance rate", "0.6")
    page.locator("#map-start").click()
    results = page.locator("#map-result td a")
    results.first.wait_for()
    page.locator("#map-stop").click()
    expect(page.locator("#map-message")).to_contain_text("c = 5, acceptance 0.6: Stopped after")
    expect(page.locator("#map-stop")).to_be_disabled()
    assert_looks(page, "#map")
    window.settle()
    results.first.click()
    expect(page.locator("#history-viewer .ss-pane")).to_have_count(2)


def test_stop_keeps_the_cells_and_the_next_sweep_is_started_and_opened_by_keys(page: Page, window) -> None:
    """The first sweep has 60 cells of 512 tokens, so that it cannot end before Stop is pressed."""
    page.get_by_role("tab", name="Lab").click()
    card, message = page.locator("#lab"), page.locator("#lab-message")
    page.locator('#lab-map [data-state="example"]').wait_for()
    expect(page.locator("#lab-stop")).to_be_disabled()
    choose(card, "Cluster", "8 × A100 80GB")
    choose(card, "Method", "Speculative decoding")
    expect(card.get_by_role("combobox", name="Sweep over")).to_have_value("gamma")
    card.get_by_role("combobox", name="Cluster").focus()
    choose_by_keys(
        page, card.get_by_role("combobox", name="Modelled pair"), "Llama 3 8B / 70B, target at TP = 8"
    )
    fill(card.get_by_role("textbox", name="Rates, drafters or values"), "0.6, 0.7, 0.8, 0.9, 1")
    fill(card.get_by_role("textbox", name="Values", exact=True), "1-12")
    fill(card.get_by_role("spinbutton", name="Tokens"), "512")
    fill(card.get_by_role("spinbutton", name="Seeds"), "1")
    page.locator("#lab-start").click()
    cells = page.locator("#lab-map .app-heat td a")
    cells.first.wait_for()
    page.locator("#lab-stop").click()
    expect(message).to_contain_text("Stopped after")
    expect(page.locator("#lab-stop")).to_be_disabled()
    done = cells.count()
    assert 1 <= done < 60
    expect(message).to_contain_text(f"Stopped after {done} of 60 cells.")
    expect(page.locator("#lab-map .ss-badge")).to_have_text("virtual · 8xA100 · llama-3-8-70-tp8")
    expect(page.locator("#lab-map .app-point")).to_have_count(5)

    sweep_by_keyboard(page)
    expect(message).to_have_text("2 cells.")
    expect(cells).to_have_count(2)
    page.locator("#lab-map .app-figure .main-svg").first.wait_for()
    marks = page.locator("#lab-map .app-point")
    expect(marks).to_have_count(0)
    expect(page.locator("#lab-map .app-points")).to_contain_text("(outside of the map)")

    assert_looks(page, "#lab")
    assert_chart_follows_the_theme(page)
    reach(page, cells.first)
    window.settle()
    page.keyboard.press("Enter")
    page.locator("#history-viewer .ss-pane").nth(1).wait_for()
    expect(page.locator("#history-viewer .ss-pane")).to_have_count(2)
    page.locator("#difference .main-svg").first.wait_for()
    assert_looks(page, "#history-open")


def sweep_by_keyboard(page: Page) -> None:
    """Open the Lab from the first tab, fill in a sweep of two cells and start it, all by keys."""
    page.get_by_role("tab", name="Playground").focus()
    reach(page, page.get_by_role("tab", name="Lab"))
    page.keyboard.press("Enter")
    card = page.locator("#lab")
    for box, text in (
        (card.get_by_role("textbox", name="Values", exact=True), "5, 6"),
        (card.get_by_role("textbox", name="Rates, drafters or values"), "0.9"),
        (card.get_by_role("spinbutton", name="Tokens"), "8"),
    ):
        reach(page, box)
        page.keyboard.press("Control+a")
        page.keyboard.type(text)
    reach(page, page.locator("#lab-start"))
    page.keyboard.press("Enter")


def choose_by_keys(page: Page, box: Locator, option: str) -> None:
    """Choose an option of a list that offers several, from the control before it."""
    reach(page, box)
    page.keyboard.press("Control+a")
    page.keyboard.type(option)
    expect(page.get_by_role("option", name=option)).to_be_visible()  # before, the list has no option at all
    expect(page.get_by_role("option", name="TP = 4")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(box).to_have_value(option)


def reach(page: Page, control: Locator) -> None:
    """Press Tab until a control has the focus, and check that the focus is visible."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if control.evaluate("(node) => node === document.activeElement"):
            break
    else:
        raise AssertionError(f"Tab does not reach {control}")
    look = "(node) => { const { outlineStyle, borderColor } = getComputedStyle(node); return [outlineStyle, borderColor]; }"
    focused = control.evaluate(look)
    assert focused[0] == "solid" or focused[1] == "rgb(61, 61, 255)", focused


def assert_chart_follows_the_theme(page: Page) -> None:
    """The texts of the chart have the theme's colour after the theme has changed."""
    title, button = page.locator("#lab-map .xtitle"), page.get_by_role("button", name="Light or dark")
    for ink in ("rgb(230, 233, 240)", "rgb(29, 36, 51)"):
        button.click()
        expect(title).to_have_css("fill", ink)


# The Load tab.


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


# The Advise tab.


def test_an_answer_is_stopped_corrected_and_its_trace_opened(page: Page, window) -> None:
    page.get_by_role("tab", name="Advise").click()
    card, message = page.locator("#advise"), page.locator("#advise-message")
    page.locator('#advise-result [data-state="example"]').wait_for()
    expect(page.locator("#advise-stop")).to_be_disabled()
    page.locator("#advise-start").click()
    expect(message).to_contain_text("of 19 places")
    page.locator("#advise-stop").click()
    expect(message).to_contain_text("Stopped after")
    expect(page.locator("#advise-stop")).to_be_disabled()

    choose(card, "Target", "Qwen3 8B")
    choose(card, "Drafter", "Qwen3 0.6B")
    fill(card.get_by_role("spinbutton", name="Tokens of a prompt"), "32")
    fill(card.get_by_role("spinbutton", name="New tokens"), "16")
    fill(card.get_by_role("textbox", name="Batch sizes"), "1")
    fill(card.get_by_role("textbox", name="Acceptance rate"), "7")
    reach(page, page.locator("#advise-start"))
    page.keyboard.press("Enter")
    expect(message.get_by_role("alert")).to_contain_text("the acceptance rate is 7; it must be at least 0.01")
    fill(card.get_by_role("textbox", name="Acceptance rate"), "0.7")
    reach(page, page.locator("#advise-start"))
    page.keyboard.press("Enter")
    expect(message).to_contain_text("places, in virtual time.")
    expect(page.locator("#advise-result .app-answer")).to_have_count(1)
    assert_looks(page, "#advise")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Save this answer as a page").click()
    assert "Qwen3 8B in fp8" in saved.value.path().read_text(encoding="utf-8")
    reach(page, page.locator(".app-bars a").first)
    window.settle()
    page.keyboard.press("Enter")
    page.locator("#history-viewer .ss-pane").wait_for()
    expect(page.locator("#history-viewer")).to_contain_text("virtual · advice")


# The Papers tab.


pytestmark = pytest.mark.browser
HIDDEN = (
    ".paper, .item, tr, .chart, [data-is]",
    "(all) => all.filter((one) => !one.checkVisibility()).forEach((one) => one.remove())",
)
"""Removes what a filter hides: axe looks at each element.

All are asked before the first is removed: asked after each removal, the page is styled again and
again, for 100 s.
"""
ALIKE = (
    ".item:nth-of-type(n + 5):not(:has(.maps)), .rows tbody tr:nth-child(n + 4):not(:has(.bad)), "
    ".chart g:nth-of-type(n + 4)"
)
"""Tables, rows and marks that look as those before them."""


def seen(content: Locator, selector: str) -> int:
    """Return how many elements are shown; `:visible` takes seconds for so many rows."""
    shown = "(all) => all.filter((one) => one.checkVisibility()).length"
    return content.locator(selector).evaluate_all(shown)


def test_the_papers_are_computed_when_the_tab_opens_and_filtered_by_keyboard(page: Page) -> None:
    content = page.locator("#papers .papers")
    choices = content.locator("fieldset")  # a role is asked of each element: not of 20,000
    expect(content).to_have_count(0)
    page.get_by_role("tab", name="Papers").click()
    content.wait_for()
    expect(content.locator(".paper")).to_have_count(8)
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000, "the tables are folded"
    assert seen(content, "tr[data-is]") == 0
    assert seen(content, ".trust tbody tr") > 12
    expect(page.locator("#papers-status").get_by_role("link")).to_have_attribute(
        "href", "/specscope/papers.html"
    )

    visible = content.locator(".paper:visible")
    expect(visible).to_have_count(8)
    choices.get_by_role("radio", name="PEARL", exact=True).focus()
    page.keyboard.press("Space")
    expect(visible).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(visible.get_by_role("heading", level=2)).to_contain_text("DSI")
    figure = visible.locator("details.item").filter(has=page.get_by_role("heading", name="Figure 2"))
    figure.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(figure).to_have_attribute("open", "")
    expect(visible.locator(".maps img:visible").first).to_be_visible()
    total = content.locator("tr[data-is]").count()
    choices.get_by_role("radio", name="off by more than 15%").check()
    assert seen(content, "tr[data-is]") == seen(content, "td.bad") > 0
    assert seen(content, "tr[data-is]") < total
    assert seen(content, ".item") == 2, "Table 2, and SP against MP"
    choices.get_by_role("radio", name="all", exact=True).last.check()
    assert 0 < seen(content, "tr[data-is]") < total, "the opened table alone"
    choices.get_by_role("radio", name="all", exact=True).first.check()
    before = page.url
    content.locator(".trust a").first.click()
    linked = content.locator(content.locator(".trust a").first.get_attribute("href"))
    expect(linked).to_be_visible()
    assert linked.bounding_box()["y"] < 950, "a link unfolds its table and scrolls to it"
    assert page.url.partition("#")[0] == before.partition("#")[0]
    expect(page.get_by_role("tab", name="Papers")).to_have_attribute("aria-selected", "true")
    choices.get_by_role("radio", name="closed form").check()
    content.locator(HIDDEN[0]).evaluate_all(HIDDEN[1])
    content.locator(ALIKE).evaluate_all("(all) => all.forEach((one) => one.remove())")
    assert_looks(page, "#papers")

    page.get_by_role("tab", name="About").click()
    page.get_by_role("tab", name="Papers").click()
    expect(choices.get_by_role("radio", name="closed form")).to_be_checked()  # it is not computed again
