"""A service over a fake cluster, with a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.runs import LiveRun, RunRequest
from app.service import Service
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
    """Run a method to its end."""

    def start(method: str = "autoregressive", prompt: str = "Tell me a story.", **more) -> LiveRun:
        run = service.start(RunRequest(method=method, prompt=prompt, **more))
        assert run.wait(20), f"still {run.state}"
        return run

    return start
