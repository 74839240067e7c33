"""What a command does at the moment, as a line on a terminal's stderr that is overwritten."""

from __future__ import annotations

import sys
import threading
import time

QUIET_S, PERIOD_S = 0.3, 0.2
"""Seconds until the line appears, and between two of its updates."""
ERASE = "\r\x1b[2K"
WIDEST = 100


class Status:
    """A line with a text and its seconds; nothing where stderr is no terminal.

    Args:
        text: What is done now; another one can be assigned.
    """

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
        """Whether stderr is a terminal."""
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
