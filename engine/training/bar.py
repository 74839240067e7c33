"""A training at a terminal: a progress bar, and Ctrl-C, which stops it with a checkpoint."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from math import isnan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.training.steps import Progress


@contextmanager
def cancel_on_interrupt() -> Generator[threading.Event]:
    """Turn the first Ctrl-C into an event; the second one interrupts at once."""
    cancel = threading.Event()

    def stop(*_: object) -> None:
        cancel.set()
        signal.signal(signal.SIGINT, handler)
        sys.stderr.write("\nstopping after this step; Ctrl-C again stops at once, without a checkpoint\n")

    handler = signal.signal(signal.SIGINT, stop)
    try:
        yield cancel
    finally:
        signal.signal(signal.SIGINT, handler)


class Bar:
    """A progress bar for each phase."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._phase = ""

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, progress: Progress) -> None:
        """Show a step, or the begin of a part."""
        if not progress.steps:
            sys.stderr.write(f"preparing the {progress.phase}\n")
            return
        if self._phase != progress.phase:
            self.__exit__()
            from tqdm import tqdm

            self._bar = tqdm(
                total=progress.steps, initial=progress.step - 1, desc=progress.phase, unit="step"
            )
            self._phase = progress.phase
        if not isnan(progress.loss):
            self._bar.set_postfix(loss=f"{progress.loss:.3f}", refresh=False)
        self._bar.update(progress.step - self._bar.n)
