"""What Ray lacks while it starts a cluster: a message and a clean end if its head dies."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

import psutil

EVERY_S = 0.2
"""Seconds between two looks at Ray's head."""
GRACE_S = 5.0
"""Seconds in which Ray may raise an error of its own."""
HEAD, NODE = "gcs_server", "raylet"
"""Names of Ray's processes. If the node dies, `ray.init` raises an error by itself."""


@contextmanager
def watched(folder: str) -> Generator[None]:
    """End this process with one line if Ray's head dies in the block that starts it.

    Ray's C++ code would wait for its head for a minute, and then end this process itself: Python
    gets no exception, and the folder stays.

    Args:
        folder: Folder of Ray's files; removed then.
    """
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(over, folder), name="start of Ray", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(over: threading.Event, folder: str) -> None:
    head: psutil.Process | None = None
    while not over.wait(EVERY_S):
        head = head or next(iter(_children(HEAD)), None)
        if head is not None and not _runs(head):
            if not over.wait(GRACE_S):
                _end(folder, head.pid)
            return


def _children(*names: str) -> list[psutil.Process]:
    """Return the running child processes with these names."""
    found: list[psutil.Process] = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if process.name() in names and _runs(process):
                found.append(process)
    return found


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _end(folder: str, pid: int) -> None:
    """End Ray's node, remove the folder, and end this process; `pid` was the head's id."""
    for process in _children(NODE):
        with suppress(psutil.Error):
            process.kill()
            process.wait(GRACE_S)  # else it would write to the folder
    shutil.rmtree(folder, ignore_errors=True)
    line = f"specscope: cannot start Ray: its head (process {pid}) ended; start it again\n"
    os.write(2, line.encode())
    os._exit(1)
