"""All that opens over the page is on top and within the window, wherever the page is scrolled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

pytestmark = pytest.mark.browser
LOOKS = {("light", 400): ("start", "end"), ("dark", 1400): ("center",)}
"""Theme and width -> where what opens a box is scrolled to; places do not depend on the theme."""
HEIGHT = 700
COVERED = """(node) => {
    const before = node.style.pointerEvents;
    node.style.pointerEvents = "auto";
    const { left, top, right, bottom, width, height } = node.getBoundingClientRect();
    const outside = left < 0 || top < 0 || right > innerWidth + 0.5 || bottom > innerHeight + 0.5;
    const places = [0.04, 0.25, 0.5, 0.75, 0.96];
    const hits = places.flatMap((x) => places.map((y) => document.elementFromPoint(left + x * width, top + y * height)));
    node.style.pointerEvents = before;
    const over = hits.find((hit) => !node.contains(hit));
    return [outside && `it ends at ${[left, top, right, bottom].map(Math.round)}`, over && `${over.outerHTML.slice(0, 120)} is over it`].filter(Boolean);
}"""
"""Return how a box of the page is cut off or covered."""


def assert_on_top(box: Locator, opener: Locator, where: tuple, opens: Callable[[], object]) -> None:
    """Scroll to what opens a box, open it, and check it; again if the page still moves."""
    faults: list[str] = []
    for _ in range(3):
        opener.evaluate("(node, at) => node.scrollIntoView({ block: at })", where[-1])
        opens()
        expect(box).to_be_visible()
        for _ in range(10):  # Gradio places a list in the frame after it is shown
            if not (faults := box.evaluate(COVERED)):
                return
            box.page.wait_for_timeout(50)
        box.page.mouse.move(1, 1)
    raise AssertionError((box, *where, *faults))


def test_cards_menus_and_lists_are_above_everything(open_page) -> None:
    page = open_page()
    race = page.locator("#demo")
    race.locator(".ss-token").first.wait_for()
    page.get_by_role("radio", name="Virtual cluster").check()
    for (theme, width), scrolled in LOOKS.items():
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": HEIGHT})
        for at in scrolled:
            cards_of_tokens(page, race, (theme, width, at))
        choices(page, ("#profile", "#profile-pair"), (theme, width, "end"))
    page.get_by_role("button", name="The whole timeline").click()
    for (theme, width), scrolled in LOOKS.items():
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": HEIGHT})
        for at in scrolled:
            menus_and_spans(page, race, (theme, width, at))
        keys = race.get_by_role("button", name="Keys")
        assert_on_top(race.locator(".ss-help"), keys, (theme, width, "end"), keys.click)
        page.keyboard.press("Escape")
    page.get_by_role("tab", name="Lab").click()
    choices(page, ("#lab-profile", "#lab-method"), ("light", 1400, "end"))


def cards_of_tokens(page: Page, race: Locator, where: tuple) -> None:
    token = race.locator(".ss-pane").last.locator(".ss-accepted").nth(4)
    assert_on_top(race.locator(".ss-float"), token, where, token.hover)
    page.mouse.move(1, 1)
    expect(race.locator(".ss-float")).to_be_hidden()


def menus_and_spans(page: Page, race: Locator, where: tuple) -> None:
    menu = race.locator(".ss-menu > summary")
    assert_on_top(
        race.locator(".ss-menu-list"),
        menu,
        where,
        lambda: menu.evaluate("(one) => one.parentNode.open ||= true"),
    )
    menu.click()
    expect(race.locator(".ss-menu-list")).to_be_hidden()
    track = race.locator(".ss-row-label:not(.ss-row-strip)", has_text="drafter").last

    def point() -> None:
        row, plot = track.bounding_box(), race.locator(".ss-gantt .ss-plot").bounding_box()
        assert row is not None
        assert plot is not None
        page.mouse.move(plot["x"] + plot["width"] * 0.2, row["y"] + row["height"] / 2)

    assert_on_top(race.locator(".ss-float"), track, where, point)
    page.mouse.move(1, 1)


def choices(page: Page, boxes: tuple[str, ...], where: tuple) -> None:
    for name in boxes:
        box, listed = page.locator(f"{name} input"), page.locator("ul[role=listbox]")
        assert_on_top(listed, box, where, lambda box=box: (box.blur(), box.click()))
        box.blur()
        expect(listed).to_have_count(0)
