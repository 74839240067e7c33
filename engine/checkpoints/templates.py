"""Render chat templates in another process, with limits of time and memory.

A chat template is a program from a model's author. Jinja's sandbox denies it files and code but
limits neither loops nor the size of strings; only a process under system limits is sure to end. One
process renders all templates, in well under a millisecond each. One that was stopped or killed from
outside is started again; the template is to blame if the next one ends, too, or for its time.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from specscope.engine.environment import variables
from specscope.engine.errors import ModelError, UsageError, one_line
from specscope.engine.hangs import watched

SECONDS = 2.0
"""Most processor seconds of a render; the bundled pair's takes 0.1 ms."""
MEMORY = 512 << 20
"""Most bytes of the process's address space."""
ADDED = 100_000
"""Most characters of a text beyond two copies of each message."""
LONGEST = 1 << 18
_END_S = 3
"""Most seconds to wait for the end of a process whose connection has closed."""


class Renderer:
    """The rendering process: starts with the first render, ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def render(self, template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
        """Return the text of chat messages, up to the start of the answer.

        `names` are further variables: name -> special token. A UsageError if the template refuses
        the messages, with its message; a ModelError if it is broken or exceeds a limit.
        """
        variables = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        limit = ADDED + 2 * sum(len(message["content"]) for message in messages)
        request = {
            "template": template,
            "variables": variables | dict(names),
            "limit": limit,
            "seconds": SECONDS,
        }
        with self._lock:
            reply = self._ask(json.dumps(request).encode())
        if "refused" in reply:
            raise UsageError(one_line(reply["refused"]))
        if "failed" in reply:
            raise ModelError(one_line(reply["failed"]))
        return reply["text"]

    def close(self) -> None:
        """End the process; the next render starts another one."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None

    def _ask(self, request: bytes) -> dict[str, Any]:
        why = ""
        for _ in range(2):
            reply, why = self._try(request)
            if reply:
                return json.loads(reply)
        raise ModelError(why)

    def _try(self, request: bytes) -> tuple[bytes, str]:
        """Return the reply, or why there is none; a ModelError if it takes too long."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended between two renders
        if self._process is None or self._connection is None:
            self._process, self._connection = _start()
        begun, status = _processor_time(), None
        try:
            with watched(self._process) as reasons, suppress(EOFError, OSError):
                self._connection.send_bytes(request)
                return self._connection.recv_bytes(), ""
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(_END_S)
        except BaseException:
            self.close()  # otherwise the next request would receive this reply
            raise
        self.close()
        # Whoever else sent it did so earlier; a part of the time leaves room for rounding.
        if status == -signal.SIGPROF and _processor_time() - begun > 0.9 * SECONDS:
            raise ModelError(f"it runs for more than {SECONDS:g} s of processor time")
        hung = [f"the process that renders it {why}" for why in reasons]
        return b"", next(iter(hung), "it ends the process that renders it")


def _processor_time() -> float:
    """Return the processor seconds of all processes that this one has started and that ended."""
    import resource  # not on all systems

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _start() -> tuple[subprocess.Popen[bytes], Connection]:
    local, remote = socket.socketpair()
    script = Path(__file__).with_name("template_process.py")
    with remote:
        process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(remote.fileno()), str(MEMORY)],
            pass_fds=(remote.fileno(),),
            env=variables(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run only
        )
    return process, Connection(local.detach())


RENDERER = Renderer()
