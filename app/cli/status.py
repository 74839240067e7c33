"""What a command does at the moment, on stderr: a line that is overwritten, bars of downloads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from engine.checkpoints.progress import Progress

QUIET_S, PERIOD_S = 0.3, 0.2
"""Seconds until the line appears, and between two of its updates."""
ERASE = "\r\x1b[2K"
WIDEST = 100


class Status:
    """A line with a text, which can be changed, and its seconds; nothing without a terminal."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._begun = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Status:
        if self._thread is not None:
            self._thread.start()
        return self

    @property
    def shown(self) -> bool:
        return self._thread is not None

    def __exit__(self, *_: object) -> None:
        self.hide()

    def hide(self) -> None:
        """Erase the line for good, before other output."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        shown, wait = False, QUIET_S
        while not self._over.wait(wait):
            seconds = time.monotonic() - self._begun
            sys.stderr.write(f"{ERASE}{self.text[:WIDEST]} · {seconds:.0f} s")
            sys.stderr.flush()
            shown, wait = True, PERIOD_S
        if shown:
            sys.stderr.write(ERASE)
            sys.stderr.flush()


class DownloadBar:
    """A progress bar per model if stderr is a terminal, else one line when the download begins."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self._before = before
        self._bar: Any = None
        self._model = ""

    def __enter__(self) -> DownloadBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, progress: Progress) -> None:
        if self._model != progress.model:
            self._model = progress.model
            self._before()
            sys.stderr.write(f"{progress.work.lower()} {progress.model}; Ctrl-C stops it\n")
            sys.stderr.flush()
            self.__exit__()
            self._bar = None
        if not progress.file or not sys.stderr.isatty():
            return
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=progress.total, unit="B", unit_scale=True)
        self._bar.set_description(progress.file, refresh=False)
        self._bar.update(progress.done - self._bar.n)
