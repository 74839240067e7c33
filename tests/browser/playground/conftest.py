"""The playground as a person starts it: a server process with the real engine, the bundled pair and its own database."""

from __future__ import annotations

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
PATIENCE = 100_000
"""Milliseconds: a busy machine may need long to load the models; a test waits for states, never for a time."""


@dataclass
class Server:
    """A running playground."""

    url: str
    process: subprocess.Popen[str]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start the playground on a free port; stop it as Ctrl+C would."""
    database = tmp_path_factory.mktemp("playground") / "traces.db"
    process = subprocess.Popen(
        [sys.executable, "-m", "app.main", "play", "--port", "0", "--db", str(database)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(PATIENCE / 1000, process.kill)
    watchdog.start()
    said = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if line.startswith("SpecScope: "):
            break
    watchdog.cancel()
    assert said, "the playground ended without a word"
    assert said[-1].startswith("SpecScope: http"), "".join(said)
    drain = threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True)
    drain.start()
    yield Server(said[-1].split()[-1], process)
    process.send_signal(2)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
    drain.join(10)
    assert "Traceback" not in "".join(said), "".join(said)


@pytest.fixture
def open_page(server: Server, chromium: Browser):
    """Open the playground in a page of its own; complaints and requests off the machine fail the test."""
    pages: list[Page] = []
    complaints: list[str] = []

    def watch(request) -> None:
        address = urlparse(request.url)
        if address.scheme.startswith(("http", "ws")) and address.hostname != "127.0.0.1":
            complaints.append(f"request off the machine: {request.url}")

    def start(query: str = "", *, theme: str = "light", width: int = 1400) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 950}, color_scheme=theme)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("request", watch)
        page.goto(f"{server.url}/{query}")
        page.get_by_role("heading", name="SpecScope").wait_for()
        pages.append(page)
        return page

    yield start
    for page in pages:
        page.context.close()
    assert complaints == []


@pytest.fixture
def page(open_page) -> Page:
    """The playground in light colours."""
    return open_page()
