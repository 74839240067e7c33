"""Show the download or conversion of models on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.pairs.progress import Progress


class DownloadBar:
    """A progress bar per model if stderr is a terminal, else one line when the download begins.

    Args:
        before: Called before the first output.
    """

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
        """Show the progress of a download."""
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
