"""My server in the playground: a recorded llama.cpp with drafts beside one without."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looks import assert_looks
from tests.browser.playground.steps import fill, press_run, type_prompt, viewer, wait_for
from tests.engine.servers.replayed import llama

pytestmark = pytest.mark.browser


def test_a_chat_with_two_servers_is_drawn_stored_and_compared(page: Page) -> None:
    with llama("draft-completion-t0") as drafts, llama("ngram-completion-t0", pause=0.02) as plain:
        page.get_by_role("radio", name="My server").check()
        for part in ("#runtime", "#drafting", ".app-picker-groups"):
            expect(page.locator(part).first).to_be_hidden()
        fill(page.get_by_role("textbox", name="Addresses"), f"{drafts.url}\n{plain.url}")
        page.get_by_role("button", name="What will it show?").click()
        expect(page.locator("#server-answer p")).to_have_count(2)
        expect(page.locator("#server-answer")).to_contain_text("counts of drafted and accepted tokens")
        type_prompt(page, "Count to twelve.")
        press_run(page, page.locator(".app-prompt", has_text="Count to twelve."))
        wait_for(page, "done")
    shown = viewer(page)
    shown.wait_for()
    panes = shown.locator(".ss-pane")
    expect(panes).to_have_count(2)
    expect(shown.locator(".ss-badge").first).to_have_text("measured · llama.cpp")
    expect(panes.nth(0).locator(".ss-accepted")).to_have_count(16)
    expect(panes.nth(1).locator(".ss-accepted")).to_have_count(0)
    expect(shown).to_contain_text("a whole step, not divided")
    expect(shown).to_contain_text("The server's totals agree: 16 drafted, 16 accepted.")
    expect(shown.locator(".ss-headline").first).to_have_text("4 target forwards · 4.75 tokens each")
    expect(shown.locator(".ss-busy")).to_have_count(0)  # what each side does is unknown
    assert_looks(page, "#live-viewer")


def test_a_server_that_does_not_answer_leads_to_its_address(page: Page) -> None:
    page.get_by_role("radio", name="My server").check()
    fill(page.get_by_role("textbox", name="Addresses"), "http://127.0.0.1:9")
    type_prompt(page, "Hello")
    press_run(page, page.locator("#alert .app-alert, #alert [role=alert]"))
    expect(page.locator("#alert")).to_contain_text("does not answer")
