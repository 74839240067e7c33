"""What carries the steps from the worker to the process that writes them.

The worker's thread only puts a step in a queue. Another thread waits for the copies of its tensors
and hands it to a process of its own, so that no writing takes time from the worker's Python.
"""

from __future__ import annotations

import atexit
import json
import logging
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from tempfile import TemporaryFile
from threading import Thread
from time import thread_time_ns
from typing import IO, Any

from specscope.engine.environment import command, variables
from specscope.engine.errors import UsageError, one_line
from specscope.engine.trace.appended import Process
from specscope.engine.vllm.clock import Events, HostClock
from specscope.engine.vllm.step import Step

log = logging.getLogger("vllm.specscope")
MOST_WAITING = 1000
"""Steps that wait; with more, steps are left out, and the files of their requests say so."""
TOLD = frozenset(10**n for n in range(2, 12))
"""Numbers of steps after which the cost is told."""
TELLING = "SpecScope: %d steps; %.3f ms of CPU a step in the worker's thread, %.3f ms in the sender's"
LAST_S = 2.0
"""Most seconds for which an ending server waits for its last steps."""


class Sender:
    """A queue, a thread, and the process that writes.

    Raises:
        UsageError: The folder cannot be written.
    """

    def __init__(self, folder: Path, about: dict[str, Any], clock: HostClock | Events) -> None:
        self.clock = clock
        self.failed: Callable[[str], None] = lambda _: None
        """Called by the thread when it can send no more."""
        self._queue: Queue[Step | None] = Queue(MOST_WAITING)
        self._lost = self._sent = self._hooks = self._spent = 0
        self._why = ""
        self._ended = False
        self._owner = Process.token
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UsageError(f"cannot write to the folder {folder}: {error.strerror}") from None
        self._process = subprocess.Popen(
            command("specscope.engine.vllm.writer", str(folder.absolute())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables(),
            start_new_session=True,  # Ctrl-C is the server's
        )
        self._thread = Thread(target=self._run, args=(about,), name="specscope", daemon=True)
        self._thread.start()
        atexit.register(self._exit)

    def put(self, step: Step) -> None:
        """Queue a step, or leave it out if the queue is full."""
        step.said["lost"] = self._lost
        try:
            self._queue.put_nowait(step)
        except Full:
            self._lost += 1
        else:
            self._lost = 0

    def close(self, why: str = "") -> None:
        """End the recordings after the steps that wait; `why` is what went wrong, if it did."""
        self._why, self._ended = self._why or why, True
        with suppress(Full):  # the thread, which is busy then, sees `_ended`
            self._queue.put_nowait(None)

    def _exit(self) -> None:
        if self._owner is Process.token:  # in a forked child no thread empties the queue
            self.close()
            self._thread.join(LAST_S)

    def _run(self, about: dict[str, Any]) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            self._say(stdin, about)
            while not (self._ended and self._queue.empty()):
                if (step := self._queue.get()) is not None:
                    self._say(stdin, self._read(step))
            self._say(stdin, {"failed": self._why})
        except BrokenPipeError:
            pass  # the process says why
        except Exception as error:  # noqa: BLE001
            self.failed(f"{type(error).__name__}: {one_line(error)}")
        with suppress(OSError):
            stdin.close()
        why = stdout.readline().decode("utf-8", "replace").strip()
        if self._process.wait():
            self.failed(why or "the writing process ended")

    def _say(self, pipe: IO[bytes], what: dict[str, Any]) -> None:
        pipe.write(json.dumps(what).encode() + b"\n")
        pipe.flush()

    def _read(self, step: Step) -> dict[str, Any]:
        """Wait for a step's copies; return it as plain values."""
        begun = thread_time_ns()
        *times, _ = self.clock.times([*(mark for _, *marks in step.marks for mark in marks), step.done])
        kinds = [kind for kind, _, _ in step.marks]
        spans = [*zip(kinds, times[::2], times[1::2], strict=True)]
        said = {**step.said, "spans": spans, **{name: t.tolist() for name, t in step.tensors.items()}}
        self._spent += thread_time_ns() - begun
        self._hooks += step.said["cost"]
        self._sent += 1
        if self._sent in TOLD:
            log.info(TELLING, self._sent, *(ns / self._sent / 1e6 for ns in (self._hooks, self._spent)))
        return said
