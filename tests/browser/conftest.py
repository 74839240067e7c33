"""Chromium, for the tests of reports and of the playground."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser")
"""Names of the system's Chromium; the shell without windows needs the least time."""
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]


def launched(playwright: Playwright) -> Browser:
    """Start Debian's Chromium, else Playwright's own."""
    path = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    return playwright.chromium.launch(executable_path=path, args=FLAGS)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One browser for all modules of this folder."""
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()
