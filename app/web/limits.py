"""Limits on size and duration of request bodies, on connections and on request heads."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY = 2 * 2**20
"""Largest request body in bytes, except for the import of a trace (`routes.MAX_UPLOAD`)."""
BODY_SECONDS = 20.0
"""Seconds within which a request's body must be complete."""
HEAD_SECONDS = 10.0
"""Seconds within which a request's head must be complete."""
SEND_SECONDS = 30.0
"""Seconds within which a client must take some part of an answer."""
MOST_UNREAD = 256 * 2**20
"""Most bytes of answers that clients have not taken, over all connections."""
CONNECTIONS = 512
"""Most connections at once. A page holds one or two."""
CLOSE = {"Connection": "close"}
"""Header of a response after which the server reads no more of the request."""


class SmallBodies:
    """Read the whole request body before the app handles it; refuse large and slow ones.

    The handler of the path `unlimited` reads and limits its body itself.
    """

    def __init__(self, app: ASGIApp, unlimited: str) -> None:
        self.app = app
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == self._unlimited:
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read(receive, Headers(scope=scope))
        except _TooLarge:
            answer = PlainTextResponse(f"the request has more than {MAX_BODY} bytes", 413, CLOSE)
            await answer(scope, receive, send)
        except TimeoutError:
            answer = PlainTextResponse(f"the request took longer than {BODY_SECONDS:g} s", 408, CLOSE)
            await answer(scope, receive, send)
        else:
            await self.app(scope, _replay(body, receive), send)


class _TooLarge(Exception):  # noqa: N818 - answered with 413
    pass


async def _read(receive: Receive, headers: Headers) -> bytes:
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > MAX_BODY:
        raise _TooLarge
    body, more = bytearray(), True
    while more:
        message = await receive()
        # A client that disconnects ends the body; the app sees the disconnect at its next receive.
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise _TooLarge
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that returns the body first, then the client's later messages."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


class BoundedConnection(H11Protocol):
    """A connection that is closed if a request head is late or an answer is not taken.

    It is closed, too, if too many connections are open or too many bytes are not taken.
    """

    _head: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            transport.set_write_buffer_limits(high=0)  # a small answer that is not taken counts, too
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head = _stopped(self._head)
        elif self._head is None:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head, self._sending = _stopped(self._head), _stopped(self._sending)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer for an answer that the client does not take as fast as it is made."""
        super().pause_writing()
        if sum(map(_unread, self.connections)) > MOST_UNREAD:
            self.transport.abort()
        else:
            self._expect_progress()

    def resume_writing(self) -> None:
        self._sending = _stopped(self._sending)
        super().resume_writing()

    def _expect_head(self) -> None:
        self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _expect_progress(self) -> None:
        _stopped(self._sending)
        self._sending = self.loop.call_later(SEND_SECONDS, self._check_progress, _unread(self))

    def _check_progress(self, before: int) -> None:
        if _unread(self) >= before:
            self.transport.abort()
        else:
            self._expect_progress()


def _stopped(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _unread(connection: Any) -> int:
    return connection.transport.get_write_buffer_size()
