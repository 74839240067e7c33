"""How much a client may send, and how long it may take: bodies of requests, and connections."""

from __future__ import annotations

import asyncio

import h11
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_BODY = 2 * 2**20
"""Bytes of a request; the import of a trace has a limit of its own."""
BODY_SECONDS = 20.0
"""Seconds within which a request's body must be complete."""
HEAD_SECONDS = 10.0
"""Seconds within which a request's head must be complete."""
CONNECTIONS = 512
"""Connections at once. A page holds one or two."""
CLOSE = {"Connection": "close"}
"""Header of an answer after which the rest of the request is not read."""


class SmallBodies:
    """Read the whole body before a request is handled; refuse one that is too large or too slow.

    Args:
        app: Handles the request.
        unlimited: Address that reads and limits its bodies itself.
    """

    def __init__(self, app: ASGIApp, unlimited: str) -> None:
        self.app = app
        self._unlimited = unlimited

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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


class _TooLarge(Exception):  # noqa: N818 - no error, an answer
    pass


async def _read(receive: Receive, headers: Headers) -> bytes:
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > MAX_BODY:
        raise _TooLarge
    body, more = bytearray(), True
    while more:
        message = await receive()
        # A client that leaves ends the body; the app learns of it when it receives again.
        body += message.get("body", b"")
        more = message["type"] == "http.request" and message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise _TooLarge
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that gives the body once, then what the client does next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


class BoundedConnection(H11Protocol):
    """Uvicorn's connection, closed when a request's head takes too long or when there are too many connections."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of an incomplete head must be followed by the rest in time."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._timer is None:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
