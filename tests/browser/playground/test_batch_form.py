"""A batch in the playground: further prompts from samples, and the text of each sequence."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.playground.test_playground import (
    alert,
    answer,
    choose,
    click_until,
    fill,
    type_prompt,
    viewer,
)

pytestmark = pytest.mark.browser


def choose_batch(page: Page) -> None:
    """Compare EMS-SD with speculative decoding, and unfold its settings."""
    for title in ("Autoregressive", "PEARL"):
        choose(page, title, False)
    choose(page, "EMS-SD", True)
    page.get_by_role("button", name="EMS-SD: settings").click()
    fill(page.locator("#ems-prompts textarea"), "")


def test_samples_fill_a_batch_and_every_sequence_is_shown(page: Page) -> None:
    choose_batch(page)
    page.locator("#ems-fill").click()
    box = page.locator("#ems-prompts textarea")
    expect(box).not_to_have_value("")
    samples = box.input_value().split("\n\n")
    assert len(samples) == 7
    answer(page, "Tell me a joke.", 12)
    batch = viewer(page).locator(".ss-pane").filter(has_text="EMS-SD")
    expect(batch.locator("details.ss-sequence")).to_have_count(8)
    expect(batch.locator("details.ss-sequence summary").nth(3)).to_contain_text(samples[2][:30])
    expect(viewer(page).locator(".ss-packing [role=listitem]").first).to_be_visible()
    other = viewer(page).locator(".ss-pane").filter(has_text="Speculative decoding")
    expect(other.locator("details.ss-sequence")).to_have_count(0)


def test_a_further_prompt_that_is_too_long_is_refused_with_its_number(page: Page) -> None:
    choose_batch(page)
    fill(page.locator("#ems-prompts textarea"), "Short.\n\n" + "word " * 4000)
    type_prompt(page, "Hi")
    click_until(page, '#alert-prompt .app-alert:has-text("prompt 2 of 3 (counted from 0)")')
    assert "context" in alert(page, "prompt")
