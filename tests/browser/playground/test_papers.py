"""The Papers tab: rows by paper and kind by keyboard, both themes and three widths."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.looks import assert_looks

pytestmark = pytest.mark.browser
HIDDEN = (
    ".paper, .item, tr, .chart, [data-is]",
    "(all) => all.forEach((one) => one.checkVisibility() || one.remove())",
)
"""Removes what a filter hides: axe looks at each element."""


def seen(content: Locator, selector: str) -> int:
    """Return how many elements are shown; `:visible` takes seconds for so many rows."""
    shown = "(all) => all.filter((one) => one.checkVisibility()).length"
    return content.locator(selector).evaluate_all(shown)


def test_the_papers_are_computed_when_the_tab_opens_and_filtered_by_keyboard(page: Page) -> None:
    content = page.locator("#papers .papers")
    expect(content).to_have_count(0)
    page.get_by_role("tab", name="Papers").click()
    content.wait_for()
    expect(content.locator(".paper")).to_have_count(7)
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000, "the tables are folded"
    assert seen(content, "tr[data-is]") == 0
    assert seen(content, ".trust tbody tr") > 12
    expect(page.locator("#papers-status").get_by_role("link")).to_have_attribute(
        "href", "/specscope/papers.html"
    )

    visible = content.locator(".paper:visible")
    expect(visible).to_have_count(7)
    content.get_by_role("radio", name="PEARL", exact=True).focus()
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
    content.get_by_role("radio", name="off by more than 15%").check()
    assert seen(content, "tr[data-is]") == seen(content, "td.bad") > 0
    assert seen(content, "tr[data-is]") < total
    assert seen(content, ".item") == 2, "Table 2, and SP against MP"
    content.get_by_role("radio", name="all", exact=True).last.check()
    assert 0 < seen(content, "tr[data-is]") < total, "the opened table alone"
    content.get_by_role("radio", name="all", exact=True).first.check()
    before = page.url
    content.locator(".trust a").first.click()
    linked = content.locator(content.locator(".trust a").first.get_attribute("href"))
    expect(linked).to_be_visible()
    assert linked.bounding_box()["y"] < 950, "a link unfolds its table and scrolls to it"
    assert page.url.partition("#")[0] == before.partition("#")[0]
    expect(page.get_by_role("tab", name="Papers")).to_have_attribute("aria-selected", "true")
    content.get_by_role("radio", name="closed form").check()
    content.locator(HIDDEN[0]).evaluate_all(HIDDEN[1])
    assert_looks(page, "#papers")

    page.get_by_role("tab", name="About").click()
    page.get_by_role("tab", name="Papers").click()
    expect(content.get_by_role("radio", name="closed form")).to_be_checked()  # it is not computed again
