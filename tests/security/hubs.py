"""A fake hub on the loopback address that serves a model's files, correctly or not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" * 6 + "c0ff"
MODEL = "someone/tiny"
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights" * 30_000,
    "chat_template.jinja": b"{{ messages }}",
}


@dataclass
class Hub:
    """Files of the hub, and its misbehaviour."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    listed: list[dict[str, Any]] | None = None
    """Files in its list, if they differ from `files`."""
    answer: bytes | None = None
    """Reply to a request for the list; default: the list."""
    status: int = 200
    """Status of every reply."""
    headers: dict[str, str] = field(default_factory=dict)
    """Additional headers of every file."""
    location: str = ""
    """Redirection of the list."""
    hang: str = ""
    """Requests whose path contains this get no reply."""
    drip: str = ""
    """Requests whose path contains this get their reply byte by byte."""
    cut: int = 0
    """Bytes of the weights before the connection closes; 0 for all."""
    cuts: float = float("inf")
    """Number of times that it closes."""
    url: str = ""
    requests: list[str] = field(default_factory=list)
    """Method and path of each request."""
    tokens: list[str | None] = field(default_factory=list)
    """Authorization header of each request."""
    reached: threading.Event = field(default_factory=threading.Event)
    """Set when a request hangs or drips."""
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def sent(self) -> list[str]:
        """Names of the requested files."""
        resolved = (path for path in self.requests if path.startswith("GET") and "/resolve/" in path)
        return [path.rsplit("/", 1)[1] for path in resolved]


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve the hub until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.hub, self.path.split("?")[0]
        hub.requests.append(f"{self.command} {path}")
        hub.tokens.append(self.headers.get("Authorization"))
        if hub.hang and hub.hang in path and (body or "/api/" in path):
            hub.reached.set()
            hub.closing.wait()
            return
        if path.startswith("/api/models/"):
            self._list()
            return
        name = path.rsplit("/", 1)[1]
        content = hub.files.get(name)
        if content is None or hub.status != 200:
            self._send(hub.status if hub.status != 200 else 404, hub.headers, b"")
            return
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT, **hub.headers}
        self._send(200, headers, content if body else None, len(content))

    def _list(self) -> None:
        hub = self.hub
        if hub.location:
            self._send(307, {"Location": hub.location}, b"")
            return
        listed = hub.listed
        if listed is None:
            listed = [{"rfilename": name, "size": len(content)} for name, content in hub.files.items()]
        rows = json.dumps({"id": MODEL, "sha": COMMIT, "siblings": listed}).encode()
        answer = rows if hub.answer is None else hub.answer
        self._send(hub.status, hub.headers if hub.status != 200 else {}, answer)

    def _send(
        self, status: int, headers: dict[str, str], content: bytes | None, length: int | None = None
    ) -> None:
        size = len(content or b"") if length is None else length
        with contextlib.suppress(OSError):  # the client may have disconnected
            self.send_response(status)
            for name, value in {"Content-Length": str(size), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self._write(content or b"")

    def _write(self, content: bytes) -> None:
        hub = self.hub
        if hub.drip and hub.drip in self.path:
            for i in range(len(content)):
                self.wfile.write(content[i : i + 1])
                hub.reached.set()
                if hub.closing.wait(0.02):
                    return
        elif hub.cut and hub.cuts > 0 and "model.safetensors" in self.path:
            hub.cuts -= 1
            self.wfile.write(content[: hub.cut])
            self.close_connection = True
        else:
            self.wfile.write(content)
