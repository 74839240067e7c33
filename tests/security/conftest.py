"""The web application with a fake cluster, one per test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from specscope.app.page import Page
from specscope.app.runs import RunRequest
from specscope.app.server import build_app
from specscope.app.service import Service
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


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a file that was never uploaded."""
    path = tmp_path / "shadow.jsonl"
    path.write_text("root:secret-of-the-machine:1:0\n")
    return path
