"""Render chat templates in another process, with limits of time and memory.

A chat template is a program from a model's author. Jinja's sandbox denies it files and code but
limits neither loops nor the size of strings; only a process under system limits is sure to end. One
process renders all templates, in well under a millisecond each; it restarts after it was ended.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
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

SECONDS = 2.0
"""Most processor seconds of a render; the bundled pair's takes 0.1 ms."""
MEMORY = 512 << 20
"""Most bytes of the process's address space."""
ADDED = 100_000
"""Most characters of a text beyond two copies of each message."""
LONGEST = 1 << 18
_PATIENCE = 30
"""Most seconds to wait for a reply, for example of a suspended process."""


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
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it ended between two renders: no template is to blame
        connection = self._connection or self._start()
        try:
            connection.send_bytes(request)
            return json.loads(connection.recv_bytes())
        except (EOFError, OSError):  # the process has ended or does not answer
            pass
        except BaseException:
            self.close()  # otherwise the next request would receive this reply
            raise
        status = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(1)
        self.close()
        if status == -signal.SIGPROF:
            raise ModelError(f"it runs for more than {SECONDS:g} s of processor time")
        raise ModelError(
            f"it does not answer within {_PATIENCE} s"
            if status is None
            else "it ends the process that renders it"
        )

    def _start(self) -> Connection:
        local, remote = socket.socketpair()
        for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            local.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", _PATIENCE, 0))
        script = Path(__file__).with_name("template_process.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(remote.fileno()), str(MEMORY)],
            pass_fds=(remote.fileno(),),
            env=variables(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run only
        )
        remote.close()
        self._connection = Connection(local.detach())
        return self._connection


RENDERER = Renderer()
