"""The address of a running server, and requests to it. Standard library only.

Requests go to the address that was given and nowhere else: no proxy is used, and a redirection is
an error. What a server sends is data of bounded size.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Lock, Timer
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from specscope.engine.errors import SpecScopeError, UsageError, one_line, shown
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
ROUTE = re.compile(r"(/v1(/models|/(chat/)?completions)?)?/*$")
"""What is left out at the end of an address: `/v1`, or a route there."""
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
            host.encode("idna")  # no name has a part that is empty or too long
        except ValueError:
            host, port, parts = "", None, urlsplit("")
        named = shown(given.rpartition("@")[2])  # a password stands before it
        usable = given.isascii() and given.isprintable() and " " not in given
        if parts.scheme not in ("http", "https") or not host or not usable:
            raise UsageError(
                f"the server's address is {named}; give one such as http://127.0.0.1:8080", "server"
            )
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"the server's address {named} has more than a host, a port and a path; give a key in {KEY}",
                "server",
            )
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                "the server's key has characters that no header can hold; give it without line ends", "key"
            )
        usual = 443 if parts.scheme == "https" else 80
        return cls(parts.scheme, host, usual if port is None else port, ROUTE.sub("", parts.path), key)

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
        with _Call(self, ASK_S, MOST_ASK_S) as call:
            response = call.send("GET", path)
            content = call.body(response)
            return content if response.status == 200 else None

    def json(self, path: str) -> Any:
        """Return the JSON value at a path; None if there is none."""
        with suppress(ValueError):
            return parse_json(self.get(path) or b"null")
        return None

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the object that the server answers to a JSON body."""
        with _Call(self, ASK_S, MOST_ASK_S) as call:
            return call.value(call.body(call.send("POST", path, body)))


class EventStream:
    """One request whose answer is a stream of events (SSE). `close` ends it from any thread."""

    def __init__(self, address: Address, path: str, body: dict[str, Any]) -> None:
        self._call, self._path, self._body = _Call(address, ANSWER_S), path, body

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield (arrival by `perf_counter_ns`, value) of each event.

        Raises:
            ServerError: The server does not answer, sends an error or no events, or ends before
                the end of its answer.
        """
        with self._call as call:
            response, data, ended = call.send("POST", self._path, self._body), b"", False
            now = perf_counter_ns()
            if "text/event-stream" not in response.getheader("content-type", "").lower():
                raise call.error(f"sent no stream for {self._path}, but {call.words(call.body(response))}")
            for line in call.lines(response):
                if line.startswith(b"error:"):  # llama.cpp, in the middle of a stream
                    raise call.error(
                        f"ended with an error: {call.words(line.removeprefix(b'error:').strip())}"
                    )
                if line.startswith(b"data:"):
                    now, data = perf_counter_ns(), data + line.removeprefix(b"data:").strip()
                elif not line and data:
                    if data == b"[DONE]":
                        return
                    value, data = call.value(data), b""
                    ended = ended or _ends(value)
                    yield now, value
            if not ended:
                raise call.error("ended its answer before the end")

    def close(self) -> None:
        self._call.stop()


class _Call:
    """A connection for one request; its errors name the address."""

    def __init__(self, address: Address, patience: float, whole: float | None = None) -> None:
        """`patience` is for each part of the answer, `whole` for all of it."""
        self._address, self._lock, self.stopped = address, Lock(), False
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        self._connection, self._patience = kind(address.host, address.port, timeout=ASK_S), patience
        self._socket: socket.socket | None = None
        self._limit = None if whole is None else Timer(whole, self.stop)

    def __enter__(self) -> _Call:
        if self._limit is not None:  # one that sends a byte now and then has no end
            self._limit.daemon = True
            self._limit.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._limit is not None:
            self._limit.cancel()
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
            self._connection.sock.settimeout(self._patience)
            with self._lock:
                self._socket = self._connection.sock  # the answer may take it from the connection
                if self.stopped:
                    raise ConnectionAbortedError("it was stopped")
            more = {} if content is None else {"Content-Type": "application/json"}
            self._connection.request(verb, self._address.path + path, content, headers | more)
            response = self._connection.getresponse()
        except (OSError, HTTPException, ValueError) as error:
            raise self.error(self._late or f"does not answer ({_reason(error)})") from None
        absent = response.status in ABSENT and verb == "GET"
        if response.status != 200 and not absent:
            key = f"; set the key in {KEY}" if response.status in (401, 403) else ""
            said = self.words(self.body(response))
            raise self.error(f"answered {path} with {response.status}: {said}{key}")
        return response

    def body(self, response: HTTPResponse) -> bytes:
        content = b"\n".join(self.lines(response, most=MOST_BYTES))
        if self._late:
            raise self.error(self._late)
        return content

    @property
    def _late(self) -> str:
        """That the time of the whole answer was up; empty if it was not, or there is none."""
        return f"sent no whole answer within {MOST_ASK_S:g} s" if self.stopped and self._limit else ""

    def lines(self, response: HTTPResponse, most: int = MOST_LINE) -> Iterator[bytes]:
        size = 0
        while True:
            try:
                line = response.readline(most + 1)
            except (OSError, HTTPException, ValueError) as error:
                raise self.error(self._late or f"ended its answer ({_reason(error)})") from None
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
            value = parse_json(text.decode("utf-8", "replace"))
        except ValueError as error:
            raise self.error(f"sent {self.words(text)}, which is no JSON ({error})") from None
        if not isinstance(value, dict):
            raise self.error(f"sent {self.words(text)}; expected an object")
        if value.get("error") or value.get("object") == "error":
            raise self.error(f"ended with an error: {self.words(text)}")
        return value

    def words(self, content: bytes) -> str:
        """Return what a server sent as a part of a message: the message in it, or its beginning."""
        text = content.decode("utf-8", "replace")
        with suppress(ValueError):
            value: Any = parse_json(text)
            while isinstance(value, dict) and (inner := value.get("error") or value.get("message")):
                value = inner
            text = value if isinstance(value, str) else text
        if self._address.key:  # which some servers repeat
            text = text.replace(self._address.key, "***")
        return shown(text[:400].encode("utf-8", "replace").decode()) if text else "nothing"

    def error(self, what: str) -> ServerError:
        return ServerError(f"the server at {self._address.url} {what}")


def _ends(event: dict[str, Any]) -> bool:
    """Return whether an event says that the text has ended, as llama.cpp or OpenAI's routes do."""
    rows = event.get("choices")
    choices = rows if isinstance(rows, list) else []
    return event.get("stop") is True or any(
        isinstance(row, dict) and row.get("finish_reason") for row in choices
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "time is up"
    return one_line(getattr(error, "strerror", None) or error)
