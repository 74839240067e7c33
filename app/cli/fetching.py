"""Download a model of the catalog, with a progress bar and with limits of time."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING

from app.cli.waiting import DownloadBar
from engine.errors import ModelError, RunCancelled

if TYPE_CHECKING:
    from pathlib import Path

    from engine.pairs.progress import Progress


def fetch(name: str, patience: float = math.inf, limit: float = math.inf) -> Path:
    """Return the directory of a model after downloading it if necessary.

    Args:
        name: Short name of the model.
        patience: Most seconds until the first byte, and between two bytes.
        limit: Most seconds for all bytes; the conversion that follows has no limit.

    Raises:
        UsageError: No model has this name.
        ModelError: The download failed, or a limit has passed.
    """
    from engine.pairs import catalog

    with DownloadBar() as bar, _Watch(patience, limit) as watch:

        def show(progress: Progress) -> None:
            watch.see(progress)
            bar.show(progress)

        try:
            return catalog.get(name, show, watch.cancel)
        except RunCancelled:
            raise ModelError(f"{name} cannot be downloaded: {watch.reason}; check the network") from None


class _Watch:
    """Sets `cancel` when a download has been without a new byte, or has taken, for too long."""

    def __init__(self, patience: float, limit: float) -> None:
        self.cancel = threading.Event()
        self.reason = ""
        self._patience, self._limit = patience, limit
        self._done, self._since = 0, time.monotonic()
        self._begun = self._since
        self._over = threading.Event()
        """Set when all bytes are here, or when the download has ended."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def see(self, progress: Progress) -> None:
        """Take the state of the download."""
        if progress.work != "Downloading" or 0 < progress.total <= progress.done:
            self._over.set()
        elif progress.done > self._done:
            self._done, self._since = progress.done, time.monotonic()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            now = time.monotonic()
            if now - self._since > self._patience:
                self.reason = f"no byte arrived in {self._patience:g} s"
            elif now - self._begun > self._limit:
                self.reason = f"it was not complete after {self._limit:g} s"
            if self.reason:
                self.cancel.set()
                return
