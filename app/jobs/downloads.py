"""Downloads of hub models, outside the queue of runs: a slow hub delays no other run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from specscope.app.jobs.runs import LiveRun
from specscope.engine.checkpoints.progress import Progress, Report
from specscope.engine.checkpoints.sources import is_slow, resolve
from specscope.engine.errors import RunCancelled, UsageError

MAX_DOWNLOADS = 4
"""Most downloads at once; a download is a set of models."""
Models = tuple[str, ...]


class Resolve(Protocol):
    """Signature of `specscope.engine.checkpoints.sources.resolve`."""

    def __call__(
        self, model: str, progress: Report | None = None, cancel: threading.Event | None = None
    ) -> Path: ...


@dataclass
class _Download:
    """A set of models and the runs that wait for it."""

    models: Models
    runs: list[LiveRun] = field(default_factory=list[LiveRun])
    progress: Progress | None = None
    cancel: threading.Event = field(default_factory=threading.Event)


class Downloads:
    """Download hub models into the local cache, with one thread per set of models.

    `ready` gets the runs whose models are downloaded, in order of arrival.
    """

    def __init__(self, ready: Callable[[Sequence[LiveRun]], None], find: Resolve = resolve) -> None:
        self._ready = ready
        self._find = find
        self._running: dict[Models, _Download] = {}
        self._threads: list[threading.Thread] = []
        self._busy: set[str] = set()
        """Models being downloaded; a second download of one of them waits."""
        self._changed = threading.Condition()

    def take(self, run: LiveRun) -> bool:
        """Download a run's models; return False if all of them are local directories.

        Runs with the same models share a download. A cached model needs no network.
        """
        request = run.request
        models = tuple(model for model in request.models if is_slow(model))
        if not models:
            return False
        with self._changed:
            download = self._running.get(models) or self._begin(models)
            download.runs.append(run)
            if download.progress is not None:
                run.show(download.progress)
        return True

    def leave(self, run: LiveRun) -> None:
        """Remove a run, and stop its download if no other run waits for it."""
        with self._changed:
            for models, download in list(self._running.items()):
                with suppress(ValueError):
                    download.runs.remove(run)
                if not download.runs:
                    download.cancel.set()
                    del self._running[models]
            self._changed.notify_all()

    def close(self) -> None:
        """Stop all downloads and wait until they have removed incomplete files."""
        with self._changed:
            for download in self._running.values():
                download.cancel.set()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _begin(self, models: Models) -> _Download:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= MAX_DOWNLOADS:
            raise UsageError(f"{MAX_DOWNLOADS} downloads are running; wait until one has ended")
        download = self._running[models] = _Download(models)
        thread = threading.Thread(target=self._work, args=(download,), name="specscope-download", daemon=True)
        self._threads.append(thread)
        thread.start()
        return download

    def _work(self, download: _Download) -> None:
        failure: BaseException | None = None
        try:
            for model in download.models:
                with self._turn(model, download.cancel):
                    self._find(model, partial(self._report, download), download.cancel)
        except BaseException as error:  # noqa: BLE001 - the waiting runs must end
            failure = error
        with self._changed:
            if self._running.get(download.models) is download:
                del self._running[download.models]
            runs = list(download.runs)
        if failure is None:
            self._ready(runs)
        for run in runs if failure is not None else ():
            run.end("failed", failure)

    def _report(self, download: _Download, progress: Progress) -> None:
        with self._changed:
            download.progress = progress
            for run in download.runs:
                run.show(progress)

    @contextmanager
    def _turn(self, model: str, cancel: threading.Event) -> Iterator[None]:
        """Lock a model, so that two downloads never fetch the same files at once."""
        with self._changed:
            self._changed.wait_for(lambda: model not in self._busy or cancel.is_set())
            if cancel.is_set():
                raise RunCancelled(f"the download of {model} was stopped")
            self._busy.add(model)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(model)
                self._changed.notify_all()
