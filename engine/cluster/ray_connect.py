"""Importing and reaching Ray: the address, the token, and what Ray would print or change."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Generator
from typing import Any

import psutil

from specscope.engine.errors import SpecScopeError, UsageError, one_line, shown
from specscope.engine.runtimes.ray.worker import CONNECT_S, reachable

SETTINGS = 4
"""Type of the frame by which a server of HTTP/2, such as Ray's head, begins (RFC 9113)."""
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS, 0, 0, 0, 0, 0))
"""What a client of HTTP/2 sends first: the preface and settings without entries."""
HEAD, NODE = "gcs_server", "raylet"
GRACE_S = 5.0
"""Seconds in which Ray may raise an error of its own when its head dies."""


def import_ray(*, starts: bool) -> Any:
    """Import Ray, with a token if a cluster is started here.

    Ray listens on all addresses of a machine. With a token it answers only those who know it; both
    its library and its servers read the token when they start.

    Raises:
        UsageError: Ray is not installed, or was imported without a token.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends nothing to its makers
    # Ray's own handler would abort this process at SIGTERM instead of closing what is open.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    if starts:  # by default a worker has niceness 15: other programs would take its processor
        os.environ.setdefault("RAY_worker_niceness", "0")
    if starts and os.environ.get("RAY_AUTH_MODE") != "token":
        if "ray" in sys.modules:
            raise UsageError(
                "this process imported ray without a token, so the cluster would answer everybody; set "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before it starts, or give the address of a cluster"
            )
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if not starts:  # tries to connect, once a second; by default 20, also with a wrong token
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")
    try:
        import ray
    except ImportError:
        raise UsageError("--runtime ray needs: pip install 'specscope[ray]'") from None
    return ray


def job() -> Any:
    """Return a configuration of this program's job that leaves the workers' `sys.path` alone.

    By default Ray puts the working directory first: workers would take a `torch.py` there.
    """
    from ray.job_config import JobConfig

    class Job(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return Job()


def checked(address: str | None) -> str:
    """Return the address for `ray.init`; UsageError if it is malformed."""
    if address is None or address == "auto":
        return address or "local"
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536) or "/" in host:
        raise UsageError(
            f"address is {shown(address)}; give host:port of Ray's head, for example 10.0.0.1:6379"
        )
    if not reachable(host, int(port)):
        raise SpecScopeError(
            f"no Ray cluster answers at {address}; start its head there: ray start --head --port {port}"
        )
    if not speaks_grpc(host, int(port)):
        raise SpecScopeError(
            f"what answers at {address} is not the head of a Ray cluster; give the port of ray start --head --port"
        )
    return address


def speaks_grpc(host: str, port: int) -> bool:
    """Return whether the server at a port, which takes connections, begins as gRPC does.

    Ray itself tries for over a minute to talk to another service.
    """
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
            connection.sendall(HELLO)
            return connection.recv(4, socket.MSG_WAITALL)[3:] == bytes((SETTINGS,))
    except OSError:
        return False


def reason(error: Exception) -> str:
    text = one_line(error)
    if "ersion mismatch" in text:
        return f"{text}; install the cluster's versions here"
    return f"{text}; if the cluster has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN here, too"


@contextlib.contextmanager
def own_signals() -> Generator[None]:
    """Keep this process's handler of SIGTERM, which Ray replaces."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def watched_head(folder: str) -> Generator[None]:
    """End this process with one line if Ray's head dies in the block that starts it.

    Ray's C++ code would wait for its head for a minute, and then end this process itself: Python
    gets no exception, and the folder of Ray's files stays.
    """
    over = threading.Event()

    def watch() -> None:
        heads = list[psutil.Process]()
        while not heads or _runs(heads[0]):
            if over.wait(0.2):
                return
            heads = heads or _children(HEAD)
        if not over.wait(GRACE_S):
            for node in _children(NODE):  # else it would write to the folder
                with contextlib.suppress(psutil.Error):  # it ended by itself
                    node.kill()
                    node.wait(GRACE_S)
            shutil.rmtree(folder, ignore_errors=True)
            line = f"specscope: cannot start Ray: its head (process {heads[0].pid}) ended; start it again\n"
            os.write(2, line.encode())
            os._exit(1)

    thread = threading.Thread(target=watch, name="start of Ray", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def disconnect(ray: Any) -> None:
    """Disconnect the module `ray`; no garbage is collected meanwhile.

    Ray ends this process if a thread frees an object reference while Ray shuts down; a garbage
    collection, in any thread, frees those that are in cycles.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        with own_signals():
            ray.shutdown()
    finally:
        if enabled:
            gc.enable()


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _children(name: str) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [each for each in psutil.Process().children() if each.name() == name and _runs(each)]
    return []


@contextlib.contextmanager
def silence() -> Generator[None]:
    """Discard standard error, to which Ray's C++ code reports each try to connect."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
