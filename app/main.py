"""The entry point of `specscope`: Ctrl-C works from here on, before the commands are imported."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def ended_at_once() -> Generator[None]:
    """End the process at Ctrl-C with one line; for imports, where an exception is a traceback."""

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        os.write(2, b"specscope: stopped\n")
        os._exit(128 + number)

    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is not signal.default_int_handler:  # ignored, or another program's
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def terminable() -> Generator[list[int]]:
    """Make SIGTERM call the SIGINT handler; yield the received signals, for the exit code."""
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # shells make background commands ignore Ctrl-C
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    if threading.current_thread() is not threading.main_thread():
        yield received  # Python sets signal handlers in the main thread only
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; print an error as one line on stderr.

    Exit codes: 0 success, 1 failed run, 2 bad usage, 130 after SIGINT, 143 after SIGTERM.
    """
    with ended_at_once():
        from app.command import carry_out
    with terminable() as signals:
        return carry_out(argv, signals)


if __name__ == "__main__":
    sys.exit(main())
