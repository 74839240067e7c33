"""Progress bars: tqdm's widget in a notebook, a line on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from specscope.engine.checkpoints.progress import Progress


def is_watched() -> bool:
    """Return whether someone sees a bar: on a terminal, or in a notebook, whose stderr is none."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def new_bar(**options: Any) -> Any:
    """Return a bar of tqdm with these options; it is silent where nobody sees it."""
    from tqdm.auto import tqdm

    return tqdm(**{"disable": not is_watched(), **options})


class DownloadBar:
    """A progress bar per model where someone sees it, else one line when the download begins."""

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
        if not progress.file or not is_watched():
            return
        if self._bar is None:
            self._bar = new_bar(total=progress.total, unit="B", unit_scale=True)
        self._bar.set_description(progress.file, refresh=False)
        self._bar.update(progress.done - self._bar.n)
