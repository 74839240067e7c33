"""Between the network and the page: response headers, known addresses, requests from other sites. Plain ASGI."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'self'",
        # Gradio compiles its templates in the page, so it needs inline scripts and eval; nothing may come from elsewhere.
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
READING = frozenset({"GET", "HEAD", "OPTIONS"})
READ = (
    *("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt"),
    *("/gradio_api/startup-events", "/gradio_api/queue/data", "/gradio_api/heartbeat/"),
    *("/assets/", "/static/", "/specscope/"),
)
"""Addresses that the page reads; one that ends in a slash also opens those below it."""
WRITTEN = ("/gradio_api/queue/join", "/specscope/import")
"""Addresses that the page writes to."""


def report_failure(what: str, error: BaseException) -> None:
    """Write one line about a failure that no rule foresaw."""
    line = f"specscope: {what} failed: {type(error).__name__}: {error}"
    sys.stderr.write("".join(c if c.isprintable() else " " for c in line[:400]) + "\n")


class Boundary:
    """Put the security headers on every answer, and answer when nothing else does. Nothing may be outside of it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
            pass  # the client is gone: no answer can reach it
        except asyncio.CancelledError:  # the server stops while a page still listens
            with suppress(Exception):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # noqa: BLE001 - the web server would print a traceback and answer without headers
            report_failure(f"{scope['method']} {scope['path']}", error)
            if not started:
                answer = PlainTextResponse("the server could not handle this", status_code=500)
                await answer(scope, receive, send_with_headers)


class KnownRoutes:
    """Refuse every address that the page does not use.

    Gradio also serves and takes files, runs handlers past its queue, calls components' methods, fetches from other
    servers and keeps statistics; none of these addresses can be reached.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and not _known(scope["method"], scope["path"]):
            await PlainTextResponse("there is no such address", status_code=404)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _known(method: str, path: str) -> bool:
    if method not in READING:
        return method == "POST" and path in WRITTEN
    return any(path == known or (known != "/" == known[-1] and path.startswith(known)) for known in READ)


class SameOrigin:
    """Refuse what another site's page sends or reads; another port of this machine is another site.

    A link to this server from elsewhere is followed: it opens a page, which the other site cannot read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and not _own(scope["method"], Headers(scope=scope)):
            answer = PlainTextResponse("requests from other sites are refused", status_code=403)
            await answer(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _own(method: str, headers: Headers) -> bool:
    """Return whether a request is of the server's own page, of no page, or a link that was followed."""
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
