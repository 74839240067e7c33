"""A service with a fake cluster and a new database; clusters that tests of commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import specscope
from specscope.app.jobs.runs import LiveRun, RunRequest
from specscope.app.jobs.service import Service
from specscope.app.web import gradio_import  # noqa: F401 - before a test imports Gradio with its stubs
from tests.app.fakes import FakeOpen


@pytest.fixture
def opener() -> FakeOpen:
    return FakeOpen()


@pytest.fixture
def service(tmp_path: Path, opener: FakeOpen) -> Iterator[Service]:
    service = Service(tmp_path / "traces.db", opener)
    yield service
    opener.gate.set()
    service.close()


@pytest.fixture
def run(service: Service):
    """Return a function that runs a method to its end."""

    def start(method: str = "autoregressive", prompt: str = "Tell me a story.", **more) -> LiveRun:
        run = service.start(RunRequest(method=method, prompt=prompt, **more))
        assert run.wait(20), f"still {run.state}"
        return run

    return start


@pytest.fixture(scope="session")
def clusters() -> Iterator[dict[str, Any]]:
    """Open clusters by the arguments of `specscope.open`."""
    with contextlib.ExitStack() as stack:
        opened: dict[str, Any] = {}
        opened["stack"] = stack
        yield opened


@pytest.fixture
def shared_clusters(clusters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make commands with the same arguments share a cluster, which stays open."""
    opening = specscope.open

    def share(*args: Any, progress: Any = None, **more: Any) -> Any:
        key = repr((args, sorted(more.items())))
        if key not in clusters:
            clusters[key] = clusters["stack"].enter_context(opening(*args, progress=progress, **more))
        return contextlib.nullcontext(clusters[key])

    monkeypatch.setattr(specscope, "open", share, raising=False)


@pytest.fixture
def db(tmp_path: Path) -> list[str]:
    """The option for a database of this test."""
    return ["--db", str(tmp_path / "traces.db")]


@pytest.fixture
def page(built: Any, service: Service) -> Any:
    """The components that the module has `built`, with the service of this test."""
    for part in (built, *filter(None, [getattr(built, "analysis", None)])):
        part.service = service
    return built
