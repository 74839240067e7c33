"""The address of a running server, and requests to it. Standard library only.

Requests go to the address that was given and nowhere else: no proxy is used, and a redirection is
an error. What a server sends is data of bounded size.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock, Timer
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from specscope.engine.errors import SpecScopeError, UsageError, shown
from specscope.engine.files import parse_json

ASK_S = 10
"""Longest wait for the answer to a question about the server."""
MOST_ASK_S = 20.0
"""Longest time until the whole answer is here."""
ANSWER_S = 600
"""Longest wait for the next token; a long prompt, or a queue, takes minutes."""
MOST_LINE = 2**20
"""Bytes of one line of a stream."""
MOST_BYTES = 64 * 2**20
"""Bytes of one answer."""
ABSENT = (400, 404, 405, 501)
"""What servers answer to a question that they do not know."""
KEY = "SPECSCOPE_SERVER_KEY"
"""The environment variable with the key of a server that asks for one."""


class ServerError(SpecScopeError):
    """A server does not answer, or answers with an error; the message names its address."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: `http://127.0.0.1:8080`, with a path before `/v1` if it has one."""

    scheme: str
    host: str
    port: int
    path: str = ""
    key: str = field(default="", repr=False)
    """Sent as `Authorization: Bearer`; never stored."""

    @classmethod
    def of(cls, text: str, key: str = "") -> Address:
        """Return the address in a text, in which `http://` and `/v1` may be absent.

        UsageError if it is none.
        """
        given = text.strip()
        try:
            parts = urlsplit(given if "://" in given else f"http://{given}")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port, parts = "", None, urlsplit("")
        usable = host.isascii() and given.isprintable() and " " not in given
        if parts.scheme not in ("http", "https") or not host or not usable:
            raise UsageError(
                f"the server's address is {shown(text)}; give one such as http://127.0.0.1:8080", "server"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UsageError(
                f"the server's address {shown(text)} has more than a host, a port and a path; give a key in {KEY}",
                "server",
            )
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                "the server's key has characters that no header can hold; give it without line ends", "key"
            )
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.scheme, host, port or (443 if parts.scheme == "https" else 80), path, key)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    @property
    def local(self) -> bool:
        """Whether it is this machine's own, by its name alone: no other machine is asked."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host.lower() == "localhost"

    def confirmed(self, why: str, *, remote: bool) -> Address:
        """Return it; UsageError if it is of another machine, which `remote` did not confirm."""
        if not self.local and not remote:
            raise UsageError(f"{self.url} is another machine: {why}", "server")
        return self

    def get(self, path: str) -> bytes | None:
        """Return what the server has at a path; None if it has nothing there.

        Raises:
            ServerError: It does not answer, asks for a key, or has an error of its own.
        """
        with _Call(self, ASK_S) as call:
            limit = Timer(MOST_ASK_S, call.stop)  # one that sends a byte now and then has no end
            limit.daemon = True
            limit.start()
            try:
                response = call.send("GET", path)
                content = call.body(response)
            finally:
                limit.cancel()
            if call.stopped:
                raise call.error(f"sent no whole answer within {MOST_ASK_S:g} s")
            return content if response.status == 200 else None

    def json(self, path: str) -> Any:
        """Return the JSON value at a path; None if there is none."""
        with suppress(ValueError):
            return parse_json(self.get(path) or b"null")
        return None

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the object that the server answers to a JSON body."""
        with _Call(self, ASK_S) as call:
            return call.value(call.body(call.send("POST", path, body)))


class Stream:
    """One request whose answer is a stream of events (SSE). `close` ends it from any thread."""

    def __init__(self, address: Address, path: str, body: dict[str, Any]) -> None:
        self._call, self._path, self._body = _Call(address, ANSWER_S), path, body

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (arrival by `perf_counter_ns`, value) of each event.

        Raises:
            ServerError: The server does not answer, or sends an error, or no events.
        """
        with self._call as call:
            response = call.send("POST", self._path, self._body)
            if "text/event-stream" not in response.getheader("content-type", ""):
                raise call.error(f"sent no stream for {self._path}, but {_words(call.body(response))}")
            for line in call.lines(response):
                now, value = perf_counter_ns(), line.removeprefix(b"data:").strip()
                if line.startswith(b"error:"):  # llama.cpp, in the middle of a stream
                    raise call.error(f"ended with an error: {_words(line.removeprefix(b'error:').strip())}")
                if not line.startswith(b"data:") or value == b"[DONE]":
                    continue
                yield now, call.value(value)

    def close(self) -> None:
        self._call.stop()


class _Call:
    """A connection for one request; its errors name the address."""

    def __init__(self, address: Address, patience: float) -> None:
        self._address, self._lock, self.stopped = address, Lock(), False
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        self._connection = kind(address.host, address.port, timeout=patience)
        self._socket: socket.socket | None = None

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def stop(self) -> None:
        """End a call that waits in another thread."""
        with self._lock:
            self.stopped = True
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, verb: str, path: str, body: dict[str, Any] | None = None) -> HTTPResponse:
        headers = {"Accept": "*/*", "User-Agent": "specscope"}
        if self._address.key:
            headers["Authorization"] = f"Bearer {self._address.key}"
        content = None if body is None else json.dumps(body).encode()
        try:
            self._connection.connect()
            with self._lock:
                self._socket = self._connection.sock  # the answer may take it from the connection
                if self.stopped:
                    raise ConnectionAbortedError("it was stopped")
            more = {} if content is None else {"Content-Type": "application/json"}
            self._connection.request(verb, self._address.path + path, content, headers | more)
            response = self._connection.getresponse()
        except (OSError, HTTPException) as error:
            raise self.error(f"does not answer ({_reason(error)})") from None
        absent = response.status in ABSENT and verb == "GET"
        if response.status != 200 and not absent:
            key = f"; set the key in {KEY}" if response.status in (401, 403) else ""
            said = _words(self.body(response))
            raise self.error(f"answered {path} with {response.status}: {said}{key}")
        return response

    def body(self, response: HTTPResponse) -> bytes:
        return b"\n".join(self.lines(response, most=MOST_BYTES))

    def lines(self, response: HTTPResponse, most: int = MOST_LINE) -> Iterator[bytes]:
        size = 0
        while True:
            try:
                line = response.readline(most + 1)
            except (OSError, HTTPException, ValueError) as error:
                raise self.error(f"ended its answer ({_reason(error)})") from None
            if not line:
                return
            size += len(line)
            if len(line) > most or size > MOST_BYTES:
                raise self.error(
                    f"sent more than {most if len(line) > most else MOST_BYTES} bytes; none of it is used"
                )
            yield line.rstrip(b"\r\n")

    def value(self, text: bytes) -> dict[str, Any]:
        try:
            value = parse_json(text)
        except ValueError as error:
            raise self.error(f"sent {_words(text)}, which is no JSON ({error})") from None
        if not isinstance(value, dict):
            raise self.error(f"sent {_words(text)}; expected an object")
        if value.get("error"):
            raise self.error(f"ended with an error: {_words(text)}")
        return value

    def error(self, what: str) -> ServerError:
        return ServerError(f"the server at {self._address.url} {what}")


def _words(content: bytes) -> str:
    """Return what a server sent as a part of a message: the message in it, or its beginning."""
    with suppress(ValueError):
        value: Any = parse_json(content)
        while isinstance(value, dict) and (inner := value.get("error") or value.get("message")):
            value = inner
        if isinstance(value, str):
            content = value.encode("utf-8", "replace")
    return shown(content[:400].decode("utf-8", "replace")) if content else "nothing"


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "time is up"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
