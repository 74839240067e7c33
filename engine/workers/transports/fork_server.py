"""The fork server's process, `python -m engine.workers FD forks`: it forks a worker per request."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import socket
import traceback
from importlib import import_module
from multiprocessing.connection import Connection

from engine.workers.transports.forks import Fork, Status
from engine.workers.transports.lifetime import end_with_parent


def serve_forks(handle: int) -> None:
    """Answer requests until the other end hangs up."""
    for module in ("engine.workers.transports.serve", "engine.pairs.load"):
        import_module(module)
    gc.freeze()  # a collection in a worker would copy the memory that all of them share
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a caller without stdout or stderr: no received file may get their numbers
    os.close(null)
    with socket.socket(fileno=handle) as control, Connection(os.dup(handle)) as requests:
        with contextlib.suppress(EOFError, OSError):
            while True:
                request = pickle.loads(requests.recv_bytes())
                answer = _exit_code(request) if isinstance(request, Status) else _fork(request, control)
                requests.send_bytes(pickle.dumps(answer))


def _exit_code(request: Status) -> int | None:
    ended, status = os.waitpid(request.process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _fork(request: Fork, control: socket.socket) -> int:
    """Fork a worker and return its process id."""
    _, files, _, _ = socket.recv_fds(control, 1, 1 + len(request.files))
    server = os.getpid()
    process = os.fork()
    if not process:
        try:
            end_with_parent(server)
            os.setsid()  # Ctrl-C goes to the run only, which stops its workers in order
            control.close()
            _become_worker(request, *files)
        except BaseException:  # noqa: BLE001 - as at the end of a program
            traceback.print_exc()
        finally:
            os._exit(1)
    for file in files:
        os.close(file)
    return process


def _become_worker(request: Fork, connection: int, *others: int) -> None:
    from engine.workers.transports.serve import serve

    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    for file, number in zip(others, request.files, strict=True):
        os.dup2(file, number)
        os.close(file)
    serve(connection)
