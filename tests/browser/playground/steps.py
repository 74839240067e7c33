"""What a user does and sees in the playground: fill in, run, choose, wait."""

from __future__ import annotations

from contextlib import suppress

from playwright.sync_api import Error, Locator, Page, expect

from tests.browser.playground.conftest import PATIENCE

METHODS = ("Autoregressive", "Speculative decoding", "PEARL")
expect.set_options(timeout=PATIENCE)


def fill(box: Locator, text: str) -> None:
    """Type a text; a box that has just been shown may replace it by its own value once."""
    expect(box).to_be_editable()
    for _ in range(3):
        box.fill(text)
        box.press("Tab")
        box.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        if box.input_value() == text:
            return
    expect(box).to_have_value(text)


def type_prompt(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Prompt", exact=True).fill(text)


def unfold(page: Page) -> None:
    """Show the settings, which a turn folds into one line."""
    button = page.get_by_role("button", name="Change settings")
    if button.is_visible():
        button.click()


def new_tokens(page: Page, count: int) -> None:
    unfold(page)
    fill(page.get_by_role("spinbutton", name="New tokens"), str(count))


def turn(page: Page, *states: str) -> Locator:
    return page.locator(", ".join(f'.app-turn[data-state="{state}"]' for state in states))


def wait_for(page: Page, *states: str) -> None:
    turn(page, *states).wait_for()


def answer(page: Page, text: str, tokens: int = 24) -> None:
    """Run a prompt, and wait until the viewer shows the answers."""
    new_tokens(page, tokens)
    type_prompt(page, text)
    press_run(page, page.locator(".app-prompt", has_text=text))
    wait_for(page, "done")
    viewer(page).wait_for()


def press_run(
    page: Page, effect: Locator, seconds: int = 1, *, key: bool = False, button: str = "#run"
) -> None:
    """Press Run, another button or the `key`s Ctrl+Enter, until the effect is shown.

    Gradio drops a press while the last call ends. Each press moves the focus: a test that
    looks for the focus afterwards waits for many `seconds`.
    """
    for _ in range(PATIENCE // 1000 // (seconds + 1)):
        with suppress(Error):
            if key:
                page.get_by_role("textbox", name="Prompt", exact=True).press("Control+Enter", timeout=1000)
            else:
                page.locator(button).click(timeout=1000)
        with suppress(Error):
            effect.first.wait_for(state="attached", timeout=seconds * 1000)
            return
    raise AssertionError(f"{effect} is not shown")


def choose(page: Page, title: str, on: bool) -> None:
    """Tick or untick a method, and wait until its settings are shown or hidden."""
    unfold(page)
    page.locator("#methods").get_by_role("checkbox", name=title, exact=True).set_checked(on)
    settings = page.get_by_role("button", name=f"{title}: settings")
    if title != METHODS[0]:  # autoregressive decoding has no settings
        expect(settings).to_be_visible(visible=on)


def viewer(page: Page, where: str = "#live-viewer"):
    return page.locator(f'{where} [data-state="ready"]').first
