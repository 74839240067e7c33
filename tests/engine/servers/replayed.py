"""A server that answers as llama.cpp or vLLM did: their recorded streams, on a free port."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[2] / "traces" / "imported" / "servers"
LLAMA = {"/props": "llama-props.json", "/metrics": "llama-metrics.txt"}


def stream(name: str) -> list[bytes]:
    """Return the lines of a recorded stream."""
    rows = (RECORDED / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(row)["raw"].encode() for row in rows]


class Replayed:
    """What a server answers by path, and the requests that it got."""

    def __init__(self, answers: dict[str, Any], events: list[bytes], pause: float = 0.0) -> None:
        self.answers, self.events, self.pause = answers, events, pause
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.url = self.moved = ""
        """Its address, and the one that it redirects to."""
        self.drip = 0.0
        """Seconds before each byte of an answer that is no stream."""

    def handler(self) -> type[BaseHTTPRequestHandler]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Print nothing."""

            def do_GET(self) -> None:
                served.headers.append(dict(self.headers))
                self._answer(served.answers.get(self.path))

            def do_POST(self) -> None:
                served.headers.append(dict(self.headers))
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                served.requests.append((self.path, body))
                if not body.get("stream"):
                    self._answer(served.answers.get(self.path))
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                try:
                    for event in served.events:
                        self.wfile.write(event + b"\n\n")
                        self.wfile.flush()
                        time.sleep(served.pause)
                except OSError:
                    pass  # the client has gone

            def _answer(self, value: Any) -> None:
                content = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(302 if served.moved else 404 if value is None else 200)
                if served.moved:
                    self.send_header("Location", served.moved)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                for part in [content[i : i + 1] for i in range(len(content))] if served.drip else [content]:
                    time.sleep(served.drip)
                    self.wfile.write(part)

        return Handler


@contextmanager
def serving(answers: dict[str, Any], events: list[bytes], pause: float = 0.0) -> Iterator[Replayed]:
    """Serve recorded answers; `pause` is in seconds, after each event."""
    replayed = Replayed(answers, events, pause)
    server = ThreadingHTTPServer(("127.0.0.1", 0), replayed.handler())
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    replayed.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield replayed
    finally:
        server.shutdown()
        server.server_close()


def llama(name: str = "draft-completion-t0.8", pause: float = 0.0) -> Any:
    """Serve as llama.cpp did."""
    answers: dict[str, Any] = {
        "/props": json.loads((RECORDED / "llama-props.json").read_text()),
        "/v1/models": {"data": [{"id": "target", "owned_by": "llamacpp"}]},
        "/tokenize": {"tokens": [1, 2, 3]},
        "/apply-template": {"prompt": "<user>hi<assistant>"},
    }
    return serving(answers, stream(f"llama-{name}"), pause)


def vllm(name: str = "pair-chat-t0") -> Any:
    """Serve as vLLM did, whose drafts had at most 4 tokens."""
    answers: dict[str, Any] = {
        "/v1/models": {"data": [{"id": "pair", "owned_by": "vllm"}]},
        "/version": {"version": "0.32.0"},
        "/metrics": (RECORDED / "vllm-metrics.txt").read_bytes(),
    }
    return serving(answers, stream(f"vllm-{name}"))
