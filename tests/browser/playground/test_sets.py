"""A file of requests is shown as one set, and so are runs that are selected together."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.looks import assert_looks
from tests.browser.playground.conftest import playing

FILES = Path(__file__).parents[2] / "traces" / "imported"


def imported(page: Page, name: str) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import", exact=True).click()
    chooser.value.set_files(FILES / name)


def test_an_imported_file_opens_as_a_set_whose_requests_open_and_selected_runs_are_one(
    window, tmp_path
) -> None:
    with playing("--pair", "bundled", "--db", str(tmp_path / "a.db")) as server:
        page = window.open()
        page.goto(f"{server.url}/?tab=history")
        page.locator('#history-table [data-state="empty"]').wait_for()
        imported(page, "vllm.jsonl")
        heading = page.locator("#history-heading")
        expect(heading.locator("h2")).to_have_text("One set of 2")
        expect(heading).to_contain_text("2 requests, 5 rounds: acceptance length 2.40")
        expect(page).to_have_url(re.compile(r"[?&]run=set(:|%3A)set-[0-9a-f]{8}$"))
        assert_looks(page, "#history-heading")
        page.locator("#history-back").click()
        for number, name in enumerate(("vanilla", "sps"), 3):
            imported(page, f"printed/11-spec-bench-{name}.jsonl")
            expect(page.locator("#history-table [data-total]")).to_have_attribute("data-total", str(number))
        for box in page.locator(".app-runs input").all()[:2]:
            box.check()
        expect(page.locator("#history-compare")).to_have_text("Compare 2")
        page.locator("#history-set").click()
        expect(heading).to_contain_text("0.83× over 2 requests: writing 0.72×, math_reasoning 1.20×.")
        page.locator("#history-back").click()
        page.locator(".app-runs [data-set]").first.click()
        expect(heading.locator("h2")).to_have_text("One set of 2")
        window.settle()
        heading.get_by_role("link", name="chatcmpl-2").click()
        page.get_by_role("heading", name="vLLM · chatcmpl-2").first.wait_for()
        page.locator("#history-back").click()
        page.locator(".app-runs [data-open]").first.click()  # the answers of Spec-Bench
        named = page.locator("tr.ss-named")
        for name in ("82", "81"):
            page.locator("#history-heading").get_by_role("link", name=name).first.click()
            expect(named.last).to_be_in_viewport()
        expect(named).to_have_count(1)
        expect(named.locator("th, td").first).to_have_text("writing · 81")
        assert_looks(page, "#history-heading")
        window.reload()
        named.wait_for()
        expect(named.locator("th, td").first).to_have_text("writing · 81")
        page.locator("#history-back").click()
        page.locator(".app-runs [data-set]").first.click()
        heading.get_by_role("button", name="Delete the set").click()
        expect(page.locator("#history-confirm")).to_contain_text("Delete these 2 runs")
        expect(page).to_have_url(re.compile(r"[?&]tab=history$"))
        page.locator("#delete-yes").click()
        expect(page.locator("#history-message")).to_contain_text("2 runs deleted")
        expect(page.locator("#history-table [data-total]")).to_have_attribute("data-total", "2")
        window.close()
    assert window.complaints == []
