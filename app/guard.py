"""ASGI middleware: security headers, a list of known routes, refusal of other sites' requests."""

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
READING = frozenset({"GET", "HEAD", "OPTIONS"})
READ = (
    *("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt"),
    *("/gradio_api/startup-events", "/gradio_api/queue/data", "/gradio_api/heartbeat/"),
    *("/assets/", "/static/", "/specscope/"),
)
"""Paths that the page reads; a path ending in a slash includes all paths below it."""
WRITTEN = ("/gradio_api/queue/join", "/specscope/import")
"""Paths that the page posts to."""
LONGEST = 255
"""Most bytes of Gradio's paths, as of a file's name; looking for a file of a longer one fails."""


def report_failure(what: str, error: BaseException) -> None:
    """Write one line about an unexpected error to stderr."""
    what = what if len(what) <= 150 else f"{what[:100]}… ({len(what)} characters)"
    line = f"specscope: {what} failed: {type(error).__name__}: {error}"
    sys.stderr.write("".join(c if c.isprintable() else " " for c in line[:400]) + "\n")


class Boundary:
    """Outermost layer: add security headers to every response and answer failures with 500."""

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
            pass  # the client is gone
        except asyncio.CancelledError:  # the server stops while a page is connected
            with suppress(Exception):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Exception as error:  # noqa: BLE001 - uvicorn would answer without headers
            report_failure(f"{scope['method']} {scope['path']}", error)
            if not started:
                answer = PlainTextResponse("the server could not handle this", status_code=500)
                await answer(scope, receive, send_with_headers)


class KnownRoutes:
    """Refuse every path that the page does not use.

    Gradio also has routes for files, for calls that bypass the queue, for components' methods, for
    proxying other servers and for statistics; none of them can be reached.
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
    if len(path.encode(errors="replace")) > LONGEST and not path.startswith("/specscope/"):
        return False
    if method not in READING:
        return method == "POST" and path in WRITTEN
    return any(path == known or (known != "/" == known[-1] and path.startswith(known)) for known in READ)


class SameOrigin:
    """Refuse requests from other sites; another port of this machine is another site.

    Links from other sites work: they open a page, which the other site cannot read.
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
