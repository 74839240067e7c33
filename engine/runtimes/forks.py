"""Worker processes that are forks of a server, which has imported the engine once (Linux, CPUs).

A new process needs two seconds of a core to import torch; a fork takes 3 ms. The server does
nothing else: it has one thread and runs no model, so no lock or pool of threads is copied in the
middle of work. It begins with the first worker, or with `prepare`, and ends with this process;
with it the kernel ends its workers. Only a fork asks it: whether a worker runs is known from the
system, so a server that hangs delays neither a run nor its end.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from specscope.engine.environment import command, variables
from specscope.engine.errors import StarterDied
from specscope.engine.hangs import IDLE_LONG, watched

END_S = 3
"""Most seconds to wait for the end of a killed server; a disk may delay it."""
POLL_S = 0.005
PR_SET_PDEATHSIG = 1


class ForkedProcess:
    """A forked worker process, with the methods of `subprocess.Popen` that are needed for it."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number after a signal; None while it runs.

        An ended worker keeps its id and its code until the server, its parent, is told to drop it.
        """
        with self._lock:
            if self._code is None:
                self._code = _exit_code(self.pid, self._server.process.pid)
                if self._code is not None:
                    self._server.drop(self.pid)
            return self._code

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
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        self._lock = threading.Lock()
        started: Future[subprocess.Popen[bytes]] = Future()
        # The kernel ends the server with the thread that starts it: this one lasts.
        threading.Thread(target=_keep, args=(theirs, started), name="fork server", daemon=True).start()
        self.process = started.result()
        atexit.register(self.close)

    @property
    def runs(self) -> bool:
        """Whether the server is this process's own and has not ended."""
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self, connection: socket.socket) -> ForkedProcess:
        """Fork a worker that serves a connection; StarterDied if the server has ended or hangs."""
        outputs = [number for number in (1, 2) if _is_open(number)]
        how, answer = "has ended", b""
        with self._lock, watched(self.process, IDLE_LONG) as reasons:  # its imports take seconds
            with contextlib.suppress(OSError):
                socket.send_fds(self._control, [b"f" + bytes(outputs)], [connection.fileno(), *outputs])
                answer = self._control.recv(16)
        if answer:
            return ForkedProcess(self, int(answer))
        with contextlib.suppress(subprocess.TimeoutExpired):  # so that `runs` is false
            self.process.wait(END_S)
        raise StarterDied(
            f"the process that starts the workers (process {self.process.pid}) {next(iter(reasons), how)}; start the run again"
        )

    def drop(self, pid: int) -> None:
        """Let the server drop a worker that has ended; one that hangs does it later, or ends."""
        with contextlib.suppress(OSError):
            self._control.send(str(pid).encode(), socket.MSG_DONTWAIT)

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.owner == os.getpid():
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
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
            command("specscope.engine.runtimes", str(connection.fileno()), str(os.getpid()), *words),
            pass_fds=(connection.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to the run only, which stops its workers in order
        )


def worker_environment(threads: int) -> dict[str, str]:
    return variables(OMP_NUM_THREADS=str(threads))


def _exit_code(pid: int, server: int) -> int | None:
    """Return the exit code of a worker; None while it runs."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return -signal.SIGKILL  # the kernel kills all workers of a server that ends
    except OSError:  # too many files are open: it can be read later
        return None
    fields = text.rpartition(")")[2].split()
    if int(fields[1]) != server:  # it was one of them; the id may be another process's by now
        return -signal.SIGKILL
    return os.waitstatus_to_exitcode(int(fields[49])) if fields[0] in "ZX" else None


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
