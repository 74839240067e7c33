"""The playground in a server process with the real engine, the bundled pair and a new database."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import pytest
from playwright.sync_api import Browser, Page, Request, Route

ROOT = Path(__file__).parents[3]
PATIENCE = 200_000
"""Longest wait for a state, in ms: a busy machine may take minutes to load the models. A test ends
after 300 s: a wait that is in vain ends before and says what the page shows."""


@dataclass
class Server:
    """A running playground."""

    url: str
    process: subprocess.Popen[str]
    database: Path | None = None


@contextmanager
def playing(*options: str, command: str = "play", **environment: str) -> Iterator[Server]:
    """Start the playground on a free port; stop it by SIGINT."""
    process = subprocess.Popen(
        [sys.executable, "-m", "specscope.app.main", command, "--port", "0", *options],
        cwd=ROOT,
        env={**os.environ, **environment},
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
    try:
        yield Server(lines[-1].split()[-1], process)
    finally:
        process.send_signal(2)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        drain.join(10)
    assert "Traceback" not in "".join(lines), "".join(lines)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The playground with the bundled pair, a new database and no other models."""
    folder = str(tmp_path_factory.mktemp("playground"))
    options = ("--pair", "bundled", "--db", f"{folder}/traces.db")
    with playing(*options, SPECSCOPE_CACHE=folder, HF_HUB_CACHE=folder) as started:
        started.database = Path(folder) / "traces.db"
        yield started


SETTLE_S = 20.0
"""Most seconds to wait for open calls."""


class Window:
    """A window of the browser, and its complaints: errors, and requests to other machines."""

    def __init__(self, chromium: Browser) -> None:
        self.context = chromium.new_context()
        self.page: Page | None = None
        self.complaints: list[str] = []
        self.calls: set[Request] = set()
        """Calls of the page that have no answer yet."""

    def open(self) -> Page:
        """Close the last page, whose open calls would fail on another address; return a new one."""
        self.close()
        page = self.page = self.context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda m: self._complain(page, m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: self._complain(page, str(e)))
        page.on("crash", lambda _: self._complain(page, "the page crashed"))
        page.on("request", lambda request: self._watch(page, request))
        for end in ("requestfinished", "requestfailed"):
            page.on(end, lambda request: self.calls.discard(request))
        return page

    @contextmanager
    def late(self, addresses: str, seconds: float) -> Iterator[None]:
        """Let these files of the server arrive late."""

        def wait(route: Route) -> None:
            time.sleep(seconds)
            route.continue_()

        self.context.route(addresses, wait)
        try:
            yield
        finally:
            self.context.unroute(addresses)

    def reload(self) -> None:
        """Reload the page once it can be left."""
        self.settle()
        assert self.page is not None
        self.page.reload()

    def settle(self) -> None:
        """Wait until the calls are answered: leaving an open one is an error in Gradio's log.

        A call joins the queue, pauses, and then asks for its results. Gradio sometimes never
        answers one; it is left open.
        """
        assert self.page is not None
        quiet, deadline = 0, time.monotonic() + SETTLE_S
        while quiet < 15 and time.monotonic() < deadline:
            self.page.wait_for_timeout(20)
            quiet = 0 if self.calls else quiet + 1

    def close(self) -> None:
        """Close the page."""
        page, self.page = self.page, None
        if page is not None:
            page.close()
        self.calls.clear()

    def _complain(self, page: Page, text: str) -> None:
        if page is self.page:
            self.complaints.append(text)

    def _watch(self, page: Page, request: Request) -> None:
        if "/gradio_api/queue/" in request.url:
            self.calls.add(request)
        address = urlparse(request.url)
        if address.scheme.startswith(("http", "ws")) and address.hostname != "127.0.0.1":
            self._complain(page, f"request to another machine: {request.url}")


@pytest.fixture(scope="module")
def window(chromium: Browser) -> Iterator[Window]:
    """One window for all tests: a page that was compiled before loads in a fifth of the time."""
    opened = Window(chromium)
    yield opened
    opened.context.close()


@pytest.fixture
def open_page(server: Server, window: Window):
    """Return a function that opens the playground; errors and outside requests fail the test."""

    def start(
        query: str = "", *, theme: str = "light", width: int = 1400, motion: str = "reduce", script: str = ""
    ) -> Page:
        page = window.open()
        page.add_init_script(script)
        page.set_viewport_size({"width": width, "height": 950})
        page.emulate_media(color_scheme=theme, reduced_motion=motion)
        page.goto(f"{server.url}/{query}")
        page.get_by_role("heading", name="SpecScope").wait_for()
        return page

    yield start
    if window.page is not None:
        window.page.evaluate("localStorage.clear(), sessionStorage.clear()")
    complaints, window.complaints = window.complaints, []
    window.close()
    assert complaints == []


@pytest.fixture
def page(open_page) -> Page:
    """The playground in light colours."""
    return open_page()
