"""Download a model of the catalog, with a progress bar and with limits of time."""

from __future__ import annotations

import math
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

    done, begun = 0, time.monotonic()
    since = begun

    def check(progress: Progress) -> None:
        """End the download, whose state comes several times a second, when a limit has passed."""
        nonlocal done, since
        if progress.work != "Downloading" or 0 < progress.total <= progress.done:
            return
        now = time.monotonic()
        if progress.done > done:
            done, since = progress.done, now
        if now - since > patience:
            raise RunCancelled(f"no byte arrived in {patience:g} s")
        if now - begun > limit:
            raise RunCancelled(f"it was not complete after {limit:g} s")

    with DownloadBar() as bar:

        def show(progress: Progress) -> None:
            check(progress)
            bar.show(progress)

        try:
            return catalog.get(name, show)
        except RunCancelled as error:
            raise ModelError(f"{name} cannot be downloaded: {error}; check the network") from None
