"""Checks of a page in both themes and three widths: nothing too wide, no serious finding of axe."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Error, Page, expect

HEIGHT = 950
LOOKS = {
    ("light", 400): True,
    ("light", 800): False,
    ("light", 1400): False,
    ("dark", 1400): True,
    ("dark", 800): False,
    ("dark", 400): False,
}
"""Theme and width -> whether axe is run: in both themes, narrow and wide.

Colours do not depend on the width, and places do not depend on the theme.
"""
ALIKE = (
    ".ss-table tbody tr:nth-child(n + 4), .app-table tbody tr:nth-child(n + 4), .ss-leaf:nth-child(n + 20)"
)
"""Rows of tables and nodes of trees that look as those before them."""
AT_REST = """async () => {
    for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
    const ending = document.getAnimations().filter((one) => one.effect.getComputedTiming().endTime < Infinity);
    await Promise.allSettled(ending.map((one) => one.finished));
}"""
TOO_WIDE = """() => {
    if (document.documentElement.scrollWidth <= innerWidth + 1) return [];
    const right = (node) => node.getBoundingClientRect().right;
    const cut = (node) => node !== document.body && (getComputedStyle(node).overflowX !== "visible" || cut(node.parentElement));
    return [...document.querySelectorAll("body *")].filter((node) => right(node) > innerWidth + 1 && !cut(node.parentElement))
        .slice(0, 5).map((node) => `${node.outerHTML.slice(0, 120)} ends at ${right(node)}`);
}"""


def assert_looks(page: Page, within: str = "body") -> None:
    """Check a part of the page in both themes and three widths; it stays light and wide.

    The page loses what is `ALIKE`, because axe takes longer for more elements.
    """
    page.locator(ALIKE).evaluate_all("(all) => all.forEach((one) => one.remove())")
    for (theme, width), audited in LOOKS.items():
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.evaluate(AT_REST)
        wide = page.evaluate(TOO_WIDE)
        assert not wide, (theme, width, *wide)
        grave = serious_findings(page, within) if audited else []
        assert not grave, (theme, width, *grave)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1400, "height": HEIGHT})


def serious_findings(page: Page, within: str) -> list[tuple[str, str, str]]:
    """Return axe's serious and critical findings: the rule, the element and the reason."""
    for again in (True, True, False):  # a live page replaces its parts: one may be absent for a moment
        expect(page.locator(within).first).to_be_attached()
        try:
            found = Axe().run(page, within, {"resultTypes": ["violations"]}).response["violations"]
            break
        except Error as error:
            if not again or "No elements found for include" not in error.message:
                raise
    grave = [rule for rule in found if rule["impact"] in ("serious", "critical")]
    return [(rule["id"], node["target"], node["failureSummary"]) for rule in grave for node in rule["nodes"]]
