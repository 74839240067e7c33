"""The playground in a server process with the real engine, the bundled pair and a new database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pytest
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[3]
PATIENCE = 300_000
"""Longest wait for a state in milliseconds; a busy machine may take minutes to load the models."""


@dataclass
class Server:
    """A running playground."""

    url: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start the playground on a free port; stop it by SIGINT."""
    folder = tmp_path_factory.mktemp("playground")
    options = ["--pair", "bundled", "--port", "0", "--db", str(folder / "traces.db")]
    process = subprocess.Popen(
        [sys.executable, "-m", "app.main", "play", *options],
        cwd=ROOT,
        env={**os.environ, "SPECSCOPE_CACHE": str(folder), "HF_HUB_CACHE": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE / 1000, process.kill)
    watchdog.start()
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if line.startswith("SpecScope: "):
            break
    watchdog.cancel()
    assert lines, "the playground ended without output"
    assert lines[-1].startswith("SpecScope: http"), "".join(lines)
    drain = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
    drain.start()
    yield Server(lines[-1].split()[-1], process)
    process.send_signal(2)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
    drain.join(10)
    assert "Traceback" not in "".join(lines), "".join(lines)


@pytest.fixture
def open_page(server: Server, chromium: Browser):
    """Return a function that opens the playground; errors and outside requests fail the test."""
    pages: list[Page] = []
    errors: list[str] = []

    def watch(request) -> None:
        address = urlparse(request.url)
        if address.scheme.startswith(("http", "ws")) and address.hostname != "127.0.0.1":
            errors.append(f"request to another machine: {request.url}")

    def start(query: str = "", *, theme: str = "light", width: int = 1400) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 950}, color_scheme=theme)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("request", watch)
        page.goto(f"{server.url}/{query}")
        page.get_by_role("heading", name="SpecScope").wait_for()
        pages.append(page)
        return page

    yield start
    for page in pages:
        page.context.close()
    assert errors == []


@pytest.fixture
def page(open_page) -> Page:
    """The playground in light colours."""
    return open_page()
