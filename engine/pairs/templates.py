"""Chat templates: programs that come with a model, rendered in a process of their own under limits.

Jinja's sandbox keeps a template from files and code, but bounds neither its loops nor the strings it makes, so only a
process whose time and memory the system limits can be sure to end. One such process serves all templates: a render
costs a message there and back, well below a millisecond, and the process starts again after it had to be ended.
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

from engine.errors import ModelError, UsageError, one_line

SECONDS = 2.0
"""Processor time that a render may take; the bundled pair's takes 0.1 ms."""
MEMORY = 512 << 20
"""Address space of the process, in bytes."""
ADDED = 100_000
"""Characters that a template may add to the messages; it may hold each of them twice."""
LONGEST = 1 << 18
"""Characters of a template."""
_PATIENCE = 30
"""Seconds after which a process that used less processor time than it may is given up, as one that was stopped."""


class Renderer:
    """The process that renders; started with the first text, and again after it was ended. It ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def render(self, template: str, messages: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> str:
        """Return what a template makes of chat messages, up to where the answer begins.

        Args:
            template: The template's text.
            messages: Each with `role` and `content`.
            names: Further variables: the special tokens by name.

        Raises:
            UsageError: The template refuses the messages; the error holds the template's own words.
            ModelError: The template is broken, or goes beyond its limits.
        """
        given = {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True}
        limit = ADDED + 2 * sum(len(message["content"]) for message in messages)
        request = {
            "template": template,
            "variables": given | dict(names),
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
        """End the process; the next text starts another one."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None

    def _ask(self, request: bytes) -> dict[str, Any]:
        connection = self._connection or self._start()
        try:
            connection.send_bytes(request)
            return json.loads(connection.recv_bytes())
        except (EOFError, OSError):  # the process ended, or did not answer
            pass
        except BaseException:
            self.close()  # an interrupt between question and answer would leave the answer to the next question
            raise
        ended = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                ended = self._process.wait(1)
        self.close()
        if ended == -signal.SIGPROF:
            raise ModelError(f"it runs for more than {SECONDS:g} s of processor time")
        raise ModelError(
            f"it does not answer within {_PATIENCE} s"
            if ended is None
            else "it ends the process that renders it"
        )

    def _start(self) -> Connection:
        here, there = socket.socketpair()
        for limit in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            here.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", _PATIENCE, 0))
        script = Path(__file__).with_name("rendering.py")
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(there.fileno()), str(MEMORY)],
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run
        )
        there.close()
        self._connection = Connection(here.detach())
        return self._connection


RENDERER = Renderer()
"""The one of this process."""
