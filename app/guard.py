"""What stands between the network and the page: login, same-origin requests, response headers. Plain ASGI, no buffering."""

from __future__ import annotations

import base64
import binascii
import secrets
import sys
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
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
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    sys.stderr.write(f"specscope: {what} failed: {reason[:300]}\n")


class SecurityHeaders:
    """Put the security headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


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
    """Refuse writes that another site's page sends: an Origin that is not this server's own address."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["method"] not in READING:
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and urlsplit(origin).netloc != headers.get("host"):
                answer = PlainTextResponse("requests from other sites are refused", status_code=403)
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)


class Login:
    """Ask for a user and a password on every request (HTTP basic authentication)."""

    def __init__(self, app: ASGIApp, credentials: str) -> None:
        self.app = app
        self._wanted = credentials.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and not self._known(Headers(scope=scope).get("authorization", "")):
            answer = PlainTextResponse(
                "a login is needed",
                status_code=401,
                headers={"WWW-Authenticate": 'Basic realm="SpecScope", charset="UTF-8"'},
            )
            await answer(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _known(self, header: str) -> bool:
        kind, _, given = header.partition(" ")
        try:
            return kind.lower() == "basic" and secrets.compare_digest(base64.b64decode(given), self._wanted)
        except binascii.Error:
            return False
