"""The worker process, `python -m specscope.engine.runtimes FD`, and the process that forks workers.

One thread of a worker receives jobs and answers control jobs, one runs forwards.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import torch

from specscope.engine.runtimes.forks import end_with_parent
from specscope.engine.runtimes.process import Wire
from specscope.engine.runtimes.thread import stream
from specscope.engine.worker.host import Host, outcome
from specscope.engine.worker.jobs import CONTROL


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._forwards: SimpleQueue[tuple[int, Any] | None] = SimpleQueue()
        self._stopped: set[int] = set()

    def send(self, message: object) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Any:
        return pickle.loads(self._connection.recv_bytes())

    def prepare(self) -> Host:
        setup, environment, folder = self.receive()
        os.environ.clear()  # a fork has those of its server
        os.environ.update(environment)
        os.chdir(folder)
        if setup.core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {setup.core})
        torch.set_num_threads(setup.threads)
        if setup.device.kind == "cuda":
            torch.cuda.set_device(setup.device.name.split("/")[0])
        self._stream = partial(stream, setup.device)
        return Host(setup.name)

    def answer(self, host: Host, number: int, job: Any) -> None:
        value = outcome(lambda: host.handle(job, lambda: number in self._stopped))
        self._stopped.discard(number)
        self.send((number, value))

    def forward(self, host: Host) -> None:
        with self._stream():  # a judge does not wait for the next forward
            while (item := self._forwards.get()) is not None:
                self.answer(host, *item)

    def serve(self) -> None:
        host = self.prepare()
        worker = threading.Thread(target=self.forward, args=(host,), daemon=True)
        worker.start()
        wire = Wire()
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, job, *dropped = self.receive()
                for drop in dropped:
                    host.handle(drop)
                if job is None:
                    self._stopped.add(number)
                elif isinstance(job, CONTROL) and host.ready(job):
                    self.answer(host, number, wire.unpack(job))
                else:  # a judge before its scores waits in the queue behind the forward
                    self._forwards.put((number, wire.unpack(job)))


def serve(handle: int) -> None:
    """Serve until the other end of the connection hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Server(Connection(handle)).serve()
    os._exit(0)  # do not wait for a forward in the other thread


def serve_forks(handle: int) -> None:
    """Answer requests until the other end hangs up."""
    import_module("specscope.engine.checkpoints.loader")
    gc.freeze()  # a collection in a worker would copy the memory that all of them share
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a caller without stdout or stderr: no received file may get their numbers
    os.close(null)
    with socket.socket(fileno=handle) as control, contextlib.suppress(EOFError, OSError):
        while True:
            message, files, _, _ = socket.recv_fds(control, 16, 3)
            if files:
                control.send(str(_fork(control, message[1:], files)).encode())
            elif message:
                os.waitpid(int(message), 0)  # it has ended, and its exit code was read
            else:
                return


def _fork(control: socket.socket, outputs: bytes, files: Sequence[int]) -> int:
    """Fork a worker; its open files are its connection and those of `outputs`, 1 and 2."""
    server = os.getpid()
    process = os.fork()
    if not process:
        try:
            end_with_parent(server)
            os.setsid()  # Ctrl-C goes to the run only, which stops its workers in order
            control.close()
            connection, *others = files
            for file, number in zip(others, outputs, strict=True):
                os.dup2(file, number)
                os.close(file)
            serve(connection)
        except BaseException:  # noqa: BLE001 - as at the end of a program
            traceback.print_exc()
        finally:
            os._exit(1)
    for file in files:
        os.close(file)
    return process
