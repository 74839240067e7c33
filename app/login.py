"""The login: HTTP basic authentication, and a back-off for those who guess."""

from __future__ import annotations

import base64
import ipaddress
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FREE = 5
"""Wrong guesses of an address before it has to wait."""
LONGEST = 16.0
"""Seconds that an address waits at most between two guesses."""
FORGOTTEN = 600.0
"""Seconds without a guess after which an address starts anew."""
ADDRESSES = 4096
"""Addresses whose guesses are counted; the one that guessed longest ago is forgotten first."""
COOKIE = "specscope-known"
ASK = {"WWW-Authenticate": 'Basic realm="SpecScope", charset="UTF-8"'}


class Login:
    """Ask for a user and a password on every request.

    A browser that logged in gets a cookie. The cookie opens nothing by itself: it spares the browser the back-off
    that somebody else at the same address has caused.
    """

    def __init__(self, app: ASGIApp, credentials: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.app = app
        self._wanted = credentials.encode()
        self._token = secrets.token_urlsafe()
        self._guesses = Guesses(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("authorization")
        if given is None:
            await _refuse("a login is needed", 401, ASK)(scope, receive, send)
            return
        address, familiar = _address(scope), self._is_familiar(scope)
        wait = 0 if familiar else self._guesses.wait(address)
        if wait > 0:
            seconds = str(math.ceil(wait))
            answer = _refuse(
                f"too many wrong logins; try again in {seconds} s", 429, {"Retry-After": seconds}
            )
            await answer(scope, receive, send)
        elif not self._fits(given):
            self._guesses.add(address)
            await _refuse("a login is needed", 401, ASK)(scope, receive, send)
        else:
            self._guesses.forget(address)
            await self.app(scope, receive, send if familiar else self._with_cookie(send))

    def _fits(self, header: str) -> bool:
        kind, _, given = header.partition(" ")
        try:
            return kind.lower() == "basic" and secrets.compare_digest(base64.b64decode(given), self._wanted)
        except ValueError:
            return False

    def _is_familiar(self, scope: Scope) -> bool:
        given = HTTPConnection(scope).cookies.get(COOKIE, "")
        return secrets.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _with_cookie(self, send: Send) -> Send:
        async def send_with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                MutableHeaders(scope=message).append("Set-Cookie", cookie)
            await send(message)

        return send_with_cookie


class Guesses:
    """Wrong guesses by address, and how long each address must wait for its next one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return the seconds until the address may guess again; 0 or less when it may now."""
        count, last = self._count(address)
        if count < FREE:
            return 0.0
        return last + min(2.0 ** (count - FREE), LONGEST) - self._clock()

    def add(self, address: str) -> None:
        """Count a wrong guess."""
        count, _ = self._count(address)
        self._counts[address] = count + 1, self._clock()
        self._counts.move_to_end(address)
        if len(self._counts) > ADDRESSES:
            self._counts.popitem(last=False)

    def forget(self, address: str) -> None:
        """Forget an address: somebody there knew the password."""
        self._counts.pop(address, None)

    def _count(self, address: str) -> tuple[int, float]:
        count, last = self._counts.get(address, (0, 0.0))
        return (0, 0.0) if self._clock() - last > FORGOTTEN else (min(count, 64), last)


def _address(scope: Scope) -> str:
    """Return what names the client: its address, or for IPv6 its network, of which one client has all addresses."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _refuse(text: str, status: int, headers: dict[str, str]) -> PlainTextResponse:
    return PlainTextResponse(text, status_code=status, headers=headers)
