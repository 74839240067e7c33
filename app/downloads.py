"""Downloads of hub models: outside the queue of runs, so that a hub that does not answer holds up nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from app.runs import LiveRun
from engine.errors import RunCancelled, UsageError
from engine.pairs.progress import Progress, Report
from engine.pairs.sources import is_slow, resolve

MOST = 4
"""Sets of models that are downloaded at once."""
Models = tuple[str, ...]


class Resolve(Protocol):
    """Finds the directory of a model, as `engine.pairs.sources.resolve` does."""

    def __call__(
        self, model: str, progress: Report | None = None, cancel: threading.Event | None = None
    ) -> Path:
        """Return the directory; download it first if need be."""
        ...


@dataclass
class _Download:
    """The models that some runs wait for."""

    models: Models
    runs: list[LiveRun] = field(default_factory=list[LiveRun])
    progress: Progress | None = None
    cancel: threading.Event = field(default_factory=threading.Event)


class Downloads:
    """Brings hub models into the local cache, each set of models in a thread of its own.

    Args:
        ready: Takes the runs whose models are there now, in order of arrival.
        find: Finds a model's directory, or downloads it.
    """

    def __init__(self, ready: Callable[[Sequence[LiveRun]], None], find: Resolve = resolve) -> None:
        self._ready = ready
        self._find = find
        self._going: dict[Models, _Download] = {}
        self._threads: list[threading.Thread] = []
        self._busy: set[str] = set()
        """Models that some download is at: another one with the same model among others waits."""
        self._changed = threading.Condition()

    def take(self, run: LiveRun) -> bool:
        """Take a run whose models are not named by directories; return False for any other.

        Two runs with the same models share a download. A model that the cache holds is found at once, without a network.

        Raises:
            UsageError: Too many downloads go on.
        """
        request = run.request
        models = tuple(model for model in request.models if is_slow(model))
        if not models:
            return False
        with self._changed:
            download = self._going.get(models) or self._begin(models)
            download.runs.append(run)
            if download.progress is not None:
                run.show(download.progress)
        return True

    def leave(self, run: LiveRun) -> None:
        """Forget a run; a download that nobody waits for any more is stopped."""
        with self._changed:
            for models, download in list(self._going.items()):
                with suppress(ValueError):
                    download.runs.remove(run)
                if not download.runs:
                    download.cancel.set()
                    del self._going[models]
            self._changed.notify_all()

    def close(self) -> None:
        """Stop all downloads and wait until they have removed what is incomplete."""
        with self._changed:
            for download in self._going.values():
                download.cancel.set()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _begin(self, models: Models) -> _Download:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= MOST:
            raise UsageError(f"{MOST} downloads go on already; wait until one has ended")
        download = self._going[models] = _Download(models)
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
        except BaseException as error:  # noqa: BLE001 - whatever it was, the runs that wait must end
            failure = error
        with self._changed:
            if self._going.get(download.models) is download:
                del self._going[download.models]
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
        """Hold a model, so that two downloads do not fetch the same files at once."""
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
