"""The models in the page: list, download with progress, cancel, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from specscope.app.runs import RunRequest
from specscope.app.service import Service
from specscope.app.tabs.library import Library, Shelf
from specscope.engine.checkpoints import catalog
from specscope.engine.errors import ModelError
from tests.app.fakes import FakeOpen, until
from tests.app.test_downloads import FakeHub


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the model's directory in an empty cache."""
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(catalog, "hub", SimpleNamespace(cached=lambda model: None))
    return tmp_path / "models" / "smollm2"


@pytest.fixture
def hub(folder: Path) -> FakeHub:
    """A source that makes the model's directory when `go` is set."""

    class Source(FakeHub):
        def __call__(self, model, progress=None, cancel=None) -> Path:
            super().__call__(model, progress, cancel)
            folder.mkdir(parents=True, exist_ok=True)
            return folder

    return Source()


@pytest.fixture
def service(tmp_path: Path, opener: FakeOpen, hub: FakeHub) -> Iterator[Service]:
    service = Service(tmp_path / "traces.db", opener, find_model=hub)
    yield service
    hub.go.set()
    service.close()


@pytest.fixture
def shelf(service: Service) -> Shelf:
    with gr.Blocks():
        return Library(service, gr.Radio(), gr.HTML()).shelves[0]


def play(generator, act: Callable[[dict], object] = lambda update: None) -> dict:
    """Return the merged updates of a handler; `act` sees each of them."""

    async def drain() -> dict:
        state: dict = {}
        async for update in generator:
            state |= update
            act(state)
        return state

    return asyncio.run(drain())


def test_a_download_shows_its_progress_and_then_the_model_is_chosen(shelf: Shelf, hub: FakeHub) -> None:
    lines = []

    def act(state: dict) -> None:
        lines.append(state.get(shelf.line, ""))
        if 'value="50"' in lines[-1]:
            assert state[shelf.cancel]["visible"] is True
            assert state[shelf.get]["visible"] is False
            hub.go.set()

    state = play(shelf.download(), act)
    assert any("5.0 MB of 10.0 MB" in line for line in lines)
    assert "on this machine" in state[shelf.line]
    assert (state[shelf.get]["visible"], state[shelf.remove]["visible"]) == (False, True)
    assert state[shelf._models] == "smollm2"
    assert hub.requests == ["smollm2"]


def test_cancel_stops_the_download(shelf: Shelf, hub: FakeHub) -> None:
    state = play(shelf.download(), lambda state: shelf.stop() if 'value="50"' in state[shelf.line] else None)
    assert "was stopped" in state[shelf.message]
    assert state[shelf.get]["visible"] is True
    assert shelf._models not in state
    until(lambda: hub.stopped == ["smollm2"])


def test_a_failed_download_shows_its_reason(shelf: Shelf, hub: FakeHub) -> None:
    hub.failure = ModelError("smollm2 cannot be downloaded: no network")
    hub.go.set()
    state = play(shelf.download())
    assert 'role="alert"' in state[shelf.message]
    assert "no network" in state[shelf.message]
    assert state[shelf.get]["visible"] is True


def test_a_page_that_opens_later_shows_a_running_download(
    shelf: Shelf, hub: FakeHub, service: Service
) -> None:
    run = service.start(RunRequest(method="", prompt="", pair="smollm2"))
    until(lambda: run.progress is not None and run.progress.percent == 50)
    seen = []

    def act(state: dict) -> None:
        seen.append(state[shelf.line])
        hub.go.set()

    state = play(shelf.follow(), act)
    assert 'value="50"' in seen[0]
    assert "on this machine" in state[shelf.line]
    assert 'data-state="here"' in play(shelf.follow())[shelf.line]


def test_a_removed_model_leaves_the_disk_and_the_workers(
    shelf: Shelf, hub: FakeHub, opener: FakeOpen, folder: Path
) -> None:
    hub.go.set()
    play(shelf.download())
    state = shelf.delete()
    assert not folder.exists()
    assert "Removed" in state[shelf.message]
    assert state[shelf.get]["visible"] is True
    assert state[shelf._models] == "bundled"
    until(lambda: [c.place["pair"] for c in opener.opened][-1:] == ["bundled"])


def test_a_model_that_a_run_uses_is_not_removed(
    shelf: Shelf, hub: FakeHub, service: Service, folder: Path
) -> None:
    hub.go.set()
    play(shelf.download())
    hub.go.clear()
    run = service.start(RunRequest(method="autoregressive", prompt="Hi", pair="smollm2"))
    until(lambda: run.state == "downloading")
    state = shelf.delete()
    assert "a run uses smollm2" in state[shelf.message]
    assert folder.exists()


def test_a_closed_service_downloads_nothing(shelf: Shelf, service: Service) -> None:
    service.close()
    assert "shutting down" in play(shelf.download())[shelf.message]
