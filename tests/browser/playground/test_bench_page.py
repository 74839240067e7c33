"""The bench's turns in the playground's page. Times are not tested."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from app.bench import page as bench
from tests.browser.playground.conftest import Window

pytestmark = pytest.mark.browser


def test_turns_of_four_panes_are_finished_and_stopped(server, window: Window, page: Page) -> None:
    window.settle()
    turns = bench.Turns(page, server.url, tokens=8)
    assert turns.press() == 4
    turns.finish()
    window.settle()
    turns.leave()
    traces = bench.last_turn(server.database)
    assert [trace.status for trace in traces] == ["done"] * 4
    assert {trace.header.limits["max_new_tokens"] for trace in traces} == {8}

    turns = bench.Turns(page, server.url, tokens=1500)
    turns.press()
    page.locator("#panes .ss-token").first.wait_for()
    assert page.evaluate(bench.STOP) > 0
    assert page.locator('.app-turn[data-state="cancelled"]').count() == 1
