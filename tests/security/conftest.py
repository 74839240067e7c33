"""The web application with a fake cluster, one per test file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specscope.app.jobs.runs import RunRequest
from specscope.app.jobs.service import Service
from specscope.app.web.page import Page
from specscope.app.web.server import build_app
from specscope.engine.errors import ModelError
from tests.app.fakes import FakeOpen

HOST = "http://127.0.0.1:7860"


def no_network(name: str, *_: object) -> Path:
    """Refuse a download, as a machine without a network does."""
    raise ModelError(f"{name} cannot be downloaded: no network")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Return a service with one stored run, which downloads nothing."""
    service = Service(tmp_path_factory.mktemp("site") / "traces.db", FakeOpen(), find_model=no_network)
    assert service.start(RunRequest(method="pearl", prompt="Tell me a story.")).wait(60)
    yield service
    service.close()


@pytest.fixture(scope="module")
def client(site: Service) -> Iterator[TestClient]:
    with TestClient(build_app(site), base_url=HOST) as client:
        yield client


@pytest.fixture(scope="module")
def page(client: TestClient) -> Page:
    """Return the page that the server has mounted."""
    app = client.app
    while not isinstance(app, FastAPI):
        app = app.app
    return next(route.app.blocks for route in app.routes if hasattr(getattr(route, "app", None), "blocks"))


def inputs_of(page: Page, handler: str) -> int:
    return len(next(each for each in page.fns.values() if each.name == handler).inputs)


def asked(
    client: TestClient,
    page: Page,
    handler: int | str,
    data: list[Any],
    event: Any = None,
    *,
    session: str = "one",
    read: bool = True,
) -> str:
    """Call a handler by number or name as the page does; return the stream of its answers."""
    if isinstance(handler, str):
        handler = next(number for number, each in page.fns.items() if each.name == handler)
    body = {"fn_index": handler, "session_hash": session, "data": data, "event_data": event}
    content = json.dumps(body)  # in ASCII, as a page sends half of a character
    head = {"Content-Type": "application/json"}
    joined = client.post("/gradio_api/queue/join", content=content, headers=head)
    if joined.status_code != 200 or not read:
        return joined.text
    return client.get("/gradio_api/queue/data", params={"session_hash": session}).text


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a file that was never uploaded."""
    path = tmp_path / "shadow.jsonl"
    path.write_text("root:secret-of-the-machine:1:0\n")
    return path
