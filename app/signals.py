"""Signals that end a command."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import FrameType

ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that end a command like Ctrl-C; SIGHUP comes when its terminal is closed."""
STOPPED = tuple(128 + number for number in (signal.SIGINT, *ENDS))
"""Exit codes after a signal."""


@contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], object]) -> Generator[None]:
    """Handle a signal meanwhile, in the main thread only: Python sets no handlers elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def ended_at_once() -> AbstractContextManager[None]:
    """End the process at Ctrl-C with one line; for imports, where an exception is a traceback."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        os.write(2, b"specscope: stopped\n")
        os._exit(128 + number)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, or another program's
        return nullcontext()
    return handling(signal.SIGINT, stop)


@contextmanager
def terminable() -> Generator[list[int]]:
    """Make `ENDS` call the SIGINT handler; yield the received signals, for the exit code.

    A signal that is ignored stays so, as SIGHUP under nohup.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # shells make background commands ignore Ctrl-C
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    with ExitStack() as stack:
        for end in ENDS:
            if signal.getsignal(end) is not signal.SIG_IGN:
                stack.enter_context(handling(end, stop))
        yield received
