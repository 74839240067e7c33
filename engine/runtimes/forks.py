"""Worker processes that are forks of a server, which has imported the engine once (Linux, CPUs).

A new process needs two seconds of a core to import torch; a fork takes 3 ms. The server does
nothing else: it has one thread and runs no model, so no lock or pool of threads is copied in the
middle of work. It begins with the first worker, or with `prepare`, and ends with this process;
with it the kernel ends its workers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from specscope.engine.environment import command, variables
from specscope.engine.errors import WorkerDied

ANSWER_S = 120
"""Seconds until a server that does not answer is given up; its imports take some of them."""
POLL_S = 0.005
PR_SET_PDEATHSIG = 1


class Fork(NamedTuple):
    """A request to fork a worker. Its open files follow it: the worker's connection, then others.

    The answer is the id of the process.
    """

    environment: dict[str, str]
    folder: str
    files: tuple[int, ...]
    """Numbers that the other files get in the worker: those of stdout and stderr."""


class Status(NamedTuple):
    """A request for the exit code of a worker. The answer is None while it runs."""

    process: int


class Forked:
    """A forked worker process, with the methods of `subprocess.Popen` that are needed for it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number after a signal; None while it runs."""
        return self._server.exit_code(self.pid)

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit code."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a worker", timeout)
            time.sleep(POLL_S)
        return code

    def kill(self) -> None:
        if self.poll() is None:  # then nobody has waited for it, and its id is still its own
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """A fork server and the connection to it; safe to use from any thread."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        ours, theirs = socket.socketpair()
        self._control, self._requests = ours, Connection(os.dup(ours.fileno()))
        self._lock = threading.Lock()
        self._codes: dict[int, int] = {}
        started: Future[subprocess.Popen[bytes]] = Future()
        # The kernel ends the server with the thread that starts it: this one lasts.
        threading.Thread(target=_keep, args=(theirs, started), name="fork server", daemon=True).start()
        self.process = started.result()
        atexit.register(self.close)

    @property
    def runs(self) -> bool:
        """Whether the server is this process's own and has not ended."""
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, connection: socket.socket, environment: dict[str, str]) -> Forked:
        """Fork a worker that serves a connection; WorkerDied if the server does not answer."""
        outputs = tuple(number for number in (1, 2) if _is_open(number))
        request = Fork(environment, str(Path.cwd()), outputs)
        with self._lock:
            return Forked(self, self._ask(request, (connection.fileno(), *outputs)))

    def exit_code(self, pid: int) -> int | None:
        with self._lock:
            if pid not in self._codes:
                try:
                    code = self._ask(Status(pid))
                except WorkerDied:
                    code = -signal.SIGKILL  # the kernel kills all workers of a server that ends
                if code is None:
                    return None
                self._codes[pid] = code
            return self._codes[pid]

    def _ask(self, request: Fork | Status, files: tuple[int, ...] = ()) -> Any:
        try:
            self._requests.send_bytes(pickle.dumps(request))
            if files:
                socket.send_fds(self._control, [b"f"], files)
            if self._requests.poll(ANSWER_S):
                return pickle.loads(self._requests.recv_bytes())
            self.process.kill()
            how = f"did not answer for {ANSWER_S} s and was killed"
        except (EOFError, OSError):
            how = "has ended"
        raise WorkerDied(
            f"the process that starts the workers (process {self.process.pid}) {how}; start the run again"
        )

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
        self._requests.close()
        self._control.close()


def _keep(theirs: socket.socket, started: Future[subprocess.Popen[bytes]]) -> None:
    try:
        process = start_process(["forks"], theirs, worker_environment(1))
    except BaseException as error:  # noqa: BLE001 - raised in __init__
        started.set_exception(error)
        return
    started.set_result(process)
    process.wait()


def start_process(
    words: list[str], connection: socket.socket, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    with connection:
        return subprocess.Popen(
            command("specscope.engine.runtimes", str(connection.fileno()), *words),
            pass_fds=(connection.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the run only, which stops its workers in order
        )


def worker_environment(threads: int) -> dict[str, str]:
    return variables(OMP_NUM_THREADS=str(threads))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


_current: ForkServer | None = None
_starting = threading.Lock()


def prepare() -> ForkServer | None:
    """Return the running fork server, after starting it if necessary; None where it is not used.

    The first worker then waits for no import. The server imports the engine in its own process
    while the caller goes on.
    """
    global _current
    if sys.platform != "linux":
        return None
    with _starting:
        if _current is not None and not _current.runs:
            _current.close()
            _current = None
        if _current is None:
            _current = ForkServer()
        return _current


def warm_up() -> None:
    """Start the fork server before a worker is needed, unless the workers may be on a GPU."""
    if not Path("/dev/nvidiactl").exists():
        prepare()


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process, even a stopped one, when the thread that started it ends.

    Only Linux can. On other systems a worker ends when its connection closes. If the parent has
    ended already, this process ends too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
