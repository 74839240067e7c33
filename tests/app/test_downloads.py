"""Downloads: outside the queue, shared, stopped without waiting runs, shown with progress."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specscope.app.downloads import MAX_DOWNLOADS
from specscope.app.render.turn import turn_line
from specscope.app.runs import Lane, LiveRun, RunRequest
from specscope.app.service import Service
from specscope.app.tabs.streaming import LivePane, frames
from specscope.engine.checkpoints.progress import Progress, Report
from specscope.engine.errors import ModelError, RunCancelled, UsageError
from tests.app.fakes import FakeCluster, FakeOpen, until


class FakeHub:
    """Fake of `resolve`: reports half of a model's bytes, waits for `go`, then ends or fails."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.requests: list[str] = []
        self.stopped: list[str] = []
        self.failure: BaseException | None = None

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
        return Path("cache")


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
    assert [c.place["target"] for c in opener.opened] == [None, "owner/big"]
    assert [c.place["download"] for c in opener.opened] == [False, False], (
        "the queue never waits for a network"
    )


def test_runs_with_the_same_models_share_a_download_in_order(
    service: Service, hub: FakeHub, opener: FakeOpen
) -> None:
    runs = [service.start(ask("owner/big", "owner/small", method=m)) for m in ("autoregressive", "pearl")]
    until(lambda: all(map(half, runs)))
    late = service.start(ask("owner/big", "owner/small", method="speculative"))
    assert half(late), "a later run shows the progress at once"
    hub.go.set()
    assert all(run.wait(20) for run in (*runs, late))
    assert hub.requests == ["owner/big", "owner/small"]
    assert [ran[0] for ran in opener.opened[0].ran] == ["autoregressive", "pearl", "speculative"]


def test_a_model_of_two_sets_is_not_downloaded_twice_at_once(service: Service, hub: FakeHub) -> None:
    first = service.start(ask("owner/big", "owner/small"))
    until(lambda: half(first))
    second = service.start(ask("owner/big", "owner/other"))
    time.sleep(0.05)
    assert hub.requests == ["owner/big"]
    hub.go.set()
    assert first.wait(20)
    assert second.wait(20)
    assert sorted(hub.requests) == ["owner/big", "owner/big", "owner/other", "owner/small"]


def test_a_download_is_stopped_when_the_last_run_leaves(service: Service, hub: FakeHub) -> None:
    first, second = service.start(ask()), service.start(ask())
    until(lambda: half(second))
    first.cancel()
    assert (first.state, first.ended) == ("cancelled", True)
    assert second.state == "downloading"
    assert hub.stopped == []
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
    assert [run.state for run in runs] == ["failed", "failed"]
    assert runs[0].error == "owner/big is not a directory here and cannot be downloaded: no"
    good = service.start(ask(None))
    assert good.wait(20)
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


def test_closing_the_service_stops_downloads(tmp_path: Path, hub: FakeHub) -> None:
    service = Service(tmp_path / "other.db", FakeOpen(), find_model=hub)
    run = service.start(ask())
    until(lambda: half(run))
    service.close()
    assert run.state == "cancelled"
    assert hub.stopped == ["owner/big"]


def test_a_download_goes_on_when_the_page_is_left(service: Service, hub: FakeHub) -> None:
    runs = [service.start(ask()), service.start(ask(method="pearl"))]

    async def leave() -> None:
        stream = frames([Lane([run]) for run in runs])
        await anext(stream)
        await stream.aclose()

    asyncio.run(leave())
    until(lambda: all(map(half, runs)))
    hub.go.set()
    until(lambda: all(run.state == "done" for run in runs))
    assert not hub.stopped


def test_the_page_shows_model_file_bytes_and_percent(service: Service, opener: FakeOpen) -> None:
    opener.waiting = [FakeCluster()]
    run = service.start(ask())
    until(lambda: half(run))
    pane = LivePane(Lane([run]))
    assert pane.update()
    assert 'data-state="downloading"' in pane.html
    assert "downloading · 50%" in pane.html
    assert "Downloading model.safetensors of owner/big: 5.0 MB of 10.0 MB." in pane.html
    line = turn_line("downloading", [Lane([run])])
    assert "Downloading the models. owner/big: 50%. Other runs continue." in line
    run.show(Progress("owner/big"))
    assert "Waiting for the hub to answer." in turn_line("downloading", [Lane([run])])
    assert pane.update()
    assert "Asking the hub for owner/big." in pane.html
