"""Downloads: outside the queue, shared, stopped alone, with progress; and the list of models."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from specscope.app.jobs.downloads import MAX_DOWNLOADS
from specscope.app.jobs.runs import Lane, LiveRun, RunRequest
from specscope.app.jobs.service import Service
from specscope.app.render.turn import turn_line
from specscope.app.tabs.library import Library, Shelf
from specscope.app.tabs.streaming import LivePane, frames
from specscope.engine.checkpoints import catalog
from specscope.engine.checkpoints.progress import Progress, Report
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from tests.app.fakes import FakeOpen, until
from tests.app.forms import shown


class FakeHub:
    """Fake of `resolve`: reports half of a model's bytes, waits for `go`, then ends or fails."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.requests: list[str] = []
        self.stopped: list[str] = []
        self.failure: BaseException | None = None
        self.folder: Path | None = None

    def __call__(
        self, model: str, progress: Report | None = None, cancel: threading.Event | None = None
    ) -> Path:
        assert progress is not None
        assert cancel is not None
        self.requests.append(model)
        progress(Progress(model))
        progress(Progress(model, "model.safetensors", 5_000_000, 10_000_000))
        while not self.go.wait(0.002):
            if cancel.is_set():
                self.stopped.append(model)
                raise RunCancelled("stopped")
        if self.failure is not None:
            raise self.failure
        if self.folder is None:
            return Path("cache")
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub()


@pytest.fixture
def service(tmp_path: Path, opener: FakeOpen, hub: FakeHub) -> Iterator[Service]:
    service = Service(tmp_path / "traces.db", opener, find_model=hub)
    yield service
    hub.go.set()
    service.close()


def ask(target: str | None = "owner/big", *drafter: str, method: str = "autoregressive") -> RunRequest:
    return RunRequest(method=method, prompt="Hi", target=target, drafter=drafter)


def half(run: LiveRun) -> bool:
    return run.progress is not None and run.progress.percent == 50


def test_other_runs_continue_during_a_download(service: Service, hub: FakeHub, opener: FakeOpen) -> None:
    slow = service.start(ask())
    until(lambda: half(slow))
    assert (slow.state, slow.position) == ("downloading", 0)
    other = service.start(ask(None))
    assert other.wait(20)
    assert (other.state, slow.state) == ("done", "downloading")
    hub.go.set()
    assert slow.wait(20)
    assert slow.state == "done"
    places = [(c.place["target"], c.place["download"]) for c in opener.opened]
    assert places == [(None, False), ("owner/big", False)], "the queue never waits for a network"


def test_runs_share_the_downloads_of_their_models_in_order(
    service: Service, hub: FakeHub, opener: FakeOpen
) -> None:
    runs = [service.start(ask("owner/big", "owner/small", method=m)) for m in ("autoregressive", "pearl")]
    until(lambda: all(map(half, runs)))
    late = service.start(ask("owner/big", "owner/small", method="speculative"))
    assert half(late), "a later run shows the progress at once"
    second = service.start(ask("owner/big", "owner/other"))
    time.sleep(0.05)
    assert hub.requests == ["owner/big"], "not twice at once"
    hub.go.set()
    assert all(run.wait(20) for run in (*runs, late, second))
    assert sorted(hub.requests) == ["owner/big", "owner/big", "owner/other", "owner/small"]
    assert [ran[0] for ran in opener.opened[0].ran] == ["autoregressive", "pearl", "speculative"]


def test_a_download_is_stopped_when_the_last_run_leaves(service: Service, hub: FakeHub) -> None:
    first, second = service.start(ask()), service.start(ask())
    until(lambda: half(second))
    first.cancel()
    assert (first.state, first.ended) == ("cancelled", True)
    assert (second.state, hub.stopped) == ("downloading", [])
    second.cancel()
    assert second.ended, "at once, even if the hub does not answer"
    until(lambda: hub.stopped == ["owner/big"])
    third = service.start(ask())
    hub.go.set()
    assert third.wait(20)
    assert third.state == "done"


def test_a_failed_download_fails_only_its_runs(service: Service, hub: FakeHub, opener: FakeOpen) -> None:
    hub.failure = ModelError("owner/big is not a directory here and cannot be downloaded: no")
    runs = [service.start(ask()), service.start(ask())]
    until(lambda: all(map(half, runs)))
    hub.go.set()
    assert all(run.wait(20) for run in runs)
    assert [(run.state, run.error) for run in runs] == [("failed", str(hub.failure))] * 2
    assert service.start(ask(None)).wait(20)
    assert [c.place["target"] for c in opener.opened] == [None]


def test_many_downloads_at_once_are_refused(service: Service, hub: FakeHub) -> None:
    runs = [service.start(ask(f"owner/model{i}")) for i in range(MAX_DOWNLOADS)]
    until(lambda: all(map(half, runs)))
    with pytest.raises(UsageError, match=f"{MAX_DOWNLOADS} downloads are running; wait until one has ended"):
        service.start(ask("owner/another"))
    assert service.start(ask("owner/model0")).state == "downloading", "shares a running download"
    assert service.start(ask(None)).wait(20)


def test_a_directory_is_never_requested_from_the_hub(
    service: Service, hub: FakeHub, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "owner" / "big").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for target in ("owner/big", "/nowhere/at/all", "bundled"):
        assert service.start(ask(target)).wait(20)
    assert hub.requests == []


def test_a_download_goes_on_when_the_page_is_left_and_ends_with_the_service(
    service: Service, hub: FakeHub
) -> None:
    runs = [service.start(ask()), service.start(ask(method="pearl"))]

    async def leave() -> None:
        stream = frames([Lane([run]) for run in runs])
        await anext(stream)
        await stream.aclose()

    asyncio.run(leave())
    until(lambda: all(map(half, runs)))
    assert not hub.stopped
    service.close()
    assert [run.state for run in runs] == ["cancelled"] * 2
    assert hub.stopped == ["owner/big"]


def test_the_page_shows_model_file_bytes_and_percent(service: Service) -> None:
    run = service.start(ask())
    until(lambda: half(run))
    lane = Lane([run])
    pane = LivePane(lane)
    assert pane.update()
    for part in (
        'data-state="downloading"',
        "downloading · 50%",
        "Downloading model.safetensors of owner/big: 5.0 MB of 10.0 MB.",
    ):
        assert part in pane.html
    line = "Downloading the models. owner/big: 50%. Other runs continue."
    assert line in turn_line("downloading", [lane])
    run.show(Progress("owner/big"))
    assert "Waiting for the hub to answer." in turn_line("downloading", [lane])
    assert pane.update()
    assert "Asking the hub for owner/big." in pane.html


# The models in the page.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the model's directory in an empty cache."""
    monkeypatch.setenv("SPECSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(catalog, "hub", SimpleNamespace(cached=lambda model: None))
    return tmp_path / "models" / "smollm2"


@pytest.fixture
def shelf(service: Service, hub: FakeHub, folder: Path) -> Shelf:
    hub.folder = folder
    with gr.Blocks():
        return Library(service, gr.Radio(), gr.HTML()).shelves[0]


def test_a_download_shows_its_progress_and_then_the_model_is_chosen(shelf: Shelf, hub: FakeHub) -> None:
    lines = []

    def act(state: dict) -> None:
        lines.append(state.get(shelf.line, ""))
        if 'value="50"' in lines[-1]:
            assert (state[shelf.cancel]["visible"], state[shelf.get]["visible"]) == (True, False)
            hub.go.set()

    state = shown(shelf.download(), act)
    assert any("5.0 MB of 10.0 MB" in line for line in lines)
    assert "on this machine" in state[shelf.line]
    assert (state[shelf.get]["visible"], state[shelf.remove]["visible"]) == (False, True)
    assert (state[shelf._models], hub.requests) == ("smollm2", ["smollm2"])


def test_a_stopped_or_failed_download_and_a_closed_service_show_their_reasons(
    shelf: Shelf, hub: FakeHub, service: Service
) -> None:
    state = shown(shelf.download(), lambda state: shelf.stop() if 'value="50"' in state[shelf.line] else None)
    assert "was stopped" in state[shelf.message]
    assert state[shelf.get]["visible"] is True
    assert shelf._models not in state
    until(lambda: hub.stopped == ["smollm2"])
    hub.failure = ModelError("smollm2 cannot be downloaded: no network")
    hub.go.set()
    state = shown(shelf.download())
    assert 'role="alert"' in state[shelf.message]
    assert "no network" in state[shelf.message]
    assert state[shelf.get]["visible"] is True
    service.close()
    assert "shutting down" in shown(shelf.download())[shelf.message]


def test_a_page_that_opens_later_shows_a_running_download(
    shelf: Shelf, hub: FakeHub, service: Service
) -> None:
    run = service.start(RunRequest(method="", prompt="", pair="smollm2"))
    until(lambda: half(run))
    seen = []

    def act(state: dict) -> None:
        seen.append(state[shelf.line])
        hub.go.set()

    state = shown(shelf.follow(), act)
    assert 'value="50"' in seen[0]
    assert "on this machine" in state[shelf.line]
    assert 'data-state="here"' in shown(shelf.follow())[shelf.line]


def test_a_model_is_removed_from_disk_and_workers_unless_a_run_uses_it(
    shelf: Shelf, hub: FakeHub, opener: FakeOpen, folder: Path, service: Service
) -> None:
    hub.go.set()
    shown(shelf.download())
    hub.go.clear()
    run = service.start(RunRequest(method="autoregressive", prompt="Hi", pair="smollm2"))
    until(lambda: run.state == "downloading")
    assert "a run uses smollm2" in shelf.delete()[shelf.message]
    assert folder.exists()
    run.cancel()
    assert run.wait(20)
    state = shelf.delete()
    assert not folder.exists()
    assert "Removed" in state[shelf.message]
    assert state[shelf.get]["visible"] is True
    assert state[shelf._models] == "bundled"
    until(lambda: [c.place["pair"] for c in opener.opened][-1:] == ["bundled"])
