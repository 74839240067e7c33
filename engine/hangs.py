"""Processes that hang: one that is stopped by a signal, or sleeps although it owes an answer.

Once a second, a process is checked. Checks are counted and no clocks are compared: nothing is
counted while a laptop sleeps or a container is frozen.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Generator
from pathlib import Path

import psutil

EVERY_S = 1.0
STOPPED = 3
"""Checks in a row at which a process that hangs is stopped."""
IDLE = 4
"""Checks in a row at which it sleeps in the middle of its work."""
IDLE_LONG = 60
"""The same for work in which it may sleep: it loads files, or waits for others."""


class Signs:
    """Signs that a process hangs, from the system's data about it.

    It is idle if all its threads sleep and it uses no processor time. A thread that waits for a
    processor or a disk does not count as asleep, so a busy machine raises no alarm.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu = -1.0
        self._stopped = self._idle = 0

    def awake(self) -> None:
        """Count its sleep anew."""
        self._cpu, self._idle = -1.0, 0

    def check(self, idle: int, *, unread: bool = False) -> str:
        """Return the reason to give the process up, if any; call it every `EVERY_S` seconds.

        It may be idle for `idle` checks; with `unread` data from it, its reader is late instead.
        """
        with contextlib.suppress(psutil.Error, OSError):  # it has ended, and its connection closed
            self._observe(unread)
        if self._stopped >= STOPPED:
            return "was stopped by a signal"
        return f"did nothing for {self._idle} s in the middle of its work" if self._idle >= idle else ""

    def _observe(self, unread: bool) -> None:
        process = psutil.Process(self._pid)
        with process.oneshot():
            status, times = process.status(), process.cpu_times()
        before, self._cpu = self._cpu, times.user + times.system
        self._stopped = self._stopped + 1 if status == psutil.STATUS_STOPPED else 0
        idle = self._cpu == before and not unread and status == psutil.STATUS_SLEEPING
        self._idle = self._idle + 1 if idle and _all_sleep(self._pid) else 0


def _all_sleep(pid: int) -> bool:
    """Return whether all threads of a process sleep; true where the system has no /proc."""
    states = set[str]()
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has just ended
            states.add(thread.read_text(errors="replace").rpartition(")")[2].split()[0])
    return states <= {"S"}


@contextlib.contextmanager
def watched(process: subprocess.Popen[bytes], idle: int = IDLE) -> Generator[list[str]]:
    """Kill a process that hangs while it owes an answer, and put the reason into the list.

    Its connection then closes, and with it ends the wait of the caller.
    """
    over, reasons, signs = threading.Event(), list[str](), Signs(process.pid)

    def watch() -> None:
        while not over.wait(EVERY_S):
            if why := signs.check(idle):
                reasons.append(f"{why} and was killed")
                process.kill()
                return

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield reasons
    finally:
        over.set()
        thread.join()
