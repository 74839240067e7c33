"""ASGI middleware: security headers, known routes, refusal of other sites' requests, the login."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import math
import secrets
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'self'",
        # Gradio compiles templates in the browser: it needs inline scripts and eval.
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "media-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
JOIN, RESULTS = "/gradio_api/queue/join", "/gradio_api/queue/data"
STREAM, ENDED = "X-Stream", "X-Stream-Ended"
"""Headers: the name that a page gives its stream of results; the server has ended that stream."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
READ = (
    *("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt"),
    *("/gradio_api/startup-events", RESULTS, "/gradio_api/heartbeat/"),
    *("/assets/", "/static/", "/specscope/"),
)
"""Paths that the page reads; a path ending in a slash includes all paths below it."""
WRITTEN = (JOIN, "/specscope/import")
MOST_STREAMS = 1000
"""Most ended streams whose names are kept."""
LONGEST = 255
"""Most bytes of Gradio's paths, as of a file's name; looking for a file of a longer one fails."""


def report_failure(what: str, error: BaseException) -> None:
    what = what if len(what) <= 150 else f"{what[:100]}… ({len(what)} characters)"
    line = f"specscope: {what} failed: {type(error).__name__}: {error}"
    sys.stderr.write("".join(c if c.isprintable() else " " for c in line[:400]) + "\n")


class Boundary:
    """Outermost layer: add security headers to every response and answer failures with 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            pass  # the client is gone
        except asyncio.CancelledError:  # the server stops while a page is connected
            await _end(send)
        except Exception as error:  # noqa: BLE001 - uvicorn would answer without headers
            if isinstance(error.__cause__, HTTPException):  # the stream's session is unknown, or over
                await _end(send)
                return
            report_failure(f"{scope['method']} {scope['path']}", error)
            if not started:
                answer = PlainTextResponse("the server could not handle this", status_code=500)
                await answer(scope, receive, send_with_headers)


async def _end(send: Send) -> None:
    """End an answer that has begun; uvicorn would print an error."""
    with suppress(Exception):
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unknown_handler(request: Request, error: Exception) -> Response:
    """Answer a call of a handler that the page does not have; Gradio raises a KeyError."""
    if request.url.path != JOIN:
        raise error
    return PlainTextResponse("the page has no such handler", status_code=404)


class LateJoins:
    """Tell a call that joins Gradio's queue whether its page's stream of results has ended.

    `assets/stream.js` gives each stream a name, and lets such a call wait until the page has read
    the end.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._ended = deque[str](maxlen=MOST_STREAMS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        stream = Headers(scope=scope).get(STREAM, "")[:LONGEST] if path in (JOIN, RESULTS) else ""

        async def send_late(message: Message) -> None:
            if path == RESULTS and b'"close_stream"' in message.get("body", b""):
                self._ended.append(stream)
            elif path == JOIN and message["type"] == "http.response.start" and stream in self._ended:
                MutableHeaders(scope=message).append(ENDED, "1")
            await send(message)

        await self.app(scope, receive, send_late if stream else send)


class Refusals:
    """Refuse paths that the page does not use, and requests from other sites.

    Gradio also has routes for files, for calls that bypass the queue, for components' methods, for
    proxying other servers and for statistics; none of them can be reached. Another port of this
    machine is another site. Links from other sites work: they open a page, which the other site
    cannot read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self.app
        if scope["type"] == "http" and not _own(scope["method"], Headers(scope=scope)):
            answer = PlainTextResponse("requests from other sites are refused", status_code=403)
        elif scope["type"] == "http" and not _known(scope["method"], scope["path"]):
            answer = PlainTextResponse("there is no such address", status_code=404)
        await answer(scope, receive, send)


def _known(method: str, path: str) -> bool:
    if len(path.encode(errors="replace")) > LONGEST and not path.startswith("/specscope/"):
        return False
    if method not in READING:
        return method == "POST" and path in WRITTEN
    return any(path == known or (known != "/" == known[-1] and path.startswith(known)) for known in READ)


def _own(method: str, headers: Headers) -> bool:
    """Return whether a request is the page's own, not from a browser page, or a followed link."""
    origin = headers.get("origin")
    if origin is not None:
        try:
            return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        except ValueError:
            return False
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return True
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return method == "GET" and followed


FREE_GUESSES = 5
"""Wrong guesses of an address before it has to wait."""
MAX_WAIT = 16.0
"""Longest wait between two guesses, in seconds."""
RESET_SECONDS = 600.0
"""Seconds without a guess after which an address counts from 0 again."""
MAX_ADDRESSES = 4096
"""Most addresses whose guesses are counted; the one with the oldest guess is dropped first."""
COOKIE = "specscope-known"
ASK = {"WWW-Authenticate": 'Basic realm="SpecScope", charset="UTF-8"'}


class Login:
    """Require a user and a password on every request.

    A browser that logged in gets a cookie. The cookie does not replace the password: it exempts
    the browser from the back-off caused by other clients at the same address.
    """

    def __init__(self, app: ASGIApp, credentials: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self._credentials = credentials.encode()
        self._token = secrets.token_urlsafe()
        self._guesses = Guesses(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        header = Headers(scope=scope).get("authorization")
        address, known = _address(scope), self._knows(scope)
        wait = 0 if known or header is None else self._guesses.wait(address)
        if wait > 0:
            seconds = str(math.ceil(wait))
            text = f"too many wrong logins; try again in {seconds} s"
            answer: ASGIApp = PlainTextResponse(text, status_code=429, headers={"Retry-After": seconds})
        elif header is None or not self._matches(header):
            if header is not None:
                self._guesses.add(address)
            answer = PlainTextResponse("a login is needed", status_code=401, headers=ASK)
        else:
            self._guesses.forget(address)
            answer, send = self.app, send if known else self._with_cookie(send)
        await answer(scope, receive, send)

    def _matches(self, header: str) -> bool:
        kind, _, encoded = header.partition(" ")
        try:
            return kind.lower() == "basic" and secrets.compare_digest(
                base64.b64decode(encoded), self._credentials
            )
        except ValueError:
            return False

    def _knows(self, scope: Scope) -> bool:
        cookie = HTTPConnection(scope).cookies.get(COOKIE, "")
        return secrets.compare_digest(cookie.encode("utf-8", "replace"), self._token.encode())

    def _with_cookie(self, send: Send) -> Send:
        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                MutableHeaders(scope=message).append("Set-Cookie", cookie)
            await send(message)

        return send_with_cookie


class Guesses:
    """Wrong guesses by address, and the time until each address may guess again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        count, last = self._count(address)
        if count < FREE_GUESSES:
            return 0.0
        return last + min(2.0 ** (count - FREE_GUESSES), MAX_WAIT) - self._clock()

    def add(self, address: str) -> None:
        count, _ = self._count(address)
        self._counts[address] = count + 1, self._clock()
        self._counts.move_to_end(address)
        if len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)

    def forget(self, address: str) -> None:
        self._counts.pop(address, None)

    def _count(self, address: str) -> tuple[int, float]:
        count, last = self._counts.get(address, (0, 0.0))
        return (0, 0.0) if self._clock() - last > RESET_SECONDS else (min(count, 64), last)


def _address(scope: Scope) -> str:
    """Return the client's address, or the network that one client owns.

    A client owns an IPv6 /64; a program of this machine owns 127.0.0.0/8.
    """
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        if mapped is None and not address.is_loopback:
            return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
        address = mapped or address
    return "loopback" if address.is_loopback else str(address)
