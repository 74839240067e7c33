"""Starting the server: addresses, ports, logins, the line with its address."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from specscope.app import guard, server
from specscope.app.server import bind, check_exposure, serve
from specscope.engine.errors import UsageError
from tests.app.fakes import FakeOpen

ROOT = Path(__file__).parents[2]


def taken_port() -> socket.socket:
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.listen()
    return holder


def test_a_given_port_is_used_one_in_use_is_refused_and_without_one_the_next_is_taken(monkeypatch) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with bind("127.0.0.1", port) as listener:
        assert listener.getsockname()[1] == port
    with taken_port() as holder:
        port = holder.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .*in use.*--port"):
            bind("127.0.0.1", port)
    with taken_port() as holder:
        port = holder.getsockname()[1]
        monkeypatch.setattr(server, "DEFAULT_PORT", port)
        with bind("127.0.0.1", None) as listener:
            assert port < listener.getsockname()[1] < port + server.PORTS
        monkeypatch.setattr(server, "PORTS", 1)
        with pytest.raises(UsageError, match="all in use"):
            bind("127.0.0.1", None)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [("127.0.0.1", 70000, "--port is 70000"), ("203.0.113.9", None, "cannot listen on 203.0.113.9")],
)
def test_addresses_that_cannot_be_used(host, port, message) -> None:
    with pytest.raises(UsageError, match=message):
        bind(host, port)


def test_an_address_that_others_can_reach_needs_a_login_or_unsafe() -> None:
    check_exposure("127.0.0.1", None, unsafe=False)
    check_exposure("localhost", None, unsafe=False)
    check_exposure("0.0.0.0", "ada:secret", unsafe=False)
    check_exposure("0.0.0.0", None, unsafe=True)
    with pytest.raises(UsageError, match=r"0\.0\.0\.0.*SPECSCOPE_AUTH or --auth to user:password.*--unsafe"):
        check_exposure("0.0.0.0", None, unsafe=False)


def test_the_server_imports_no_torch_gradio_parses_no_sources_for_stubs_and_pages_of_commands_need_none() -> (
    None
):
    code = """
import ast, sys
sys.modules["gradio"] = None  # pages that `sweep -o` and `load -o` write have the tabs' HTML
import specscope.app.render.lab, specscope.app.routes
del sys.modules["gradio"]
segment, parsed = ast.get_source_segment, set()
ast.get_source_segment = lambda code, node: parsed.add(node.name) or segment(code, node)
from specscope.app.server import Service, build_app
ast.get_source_segment = segment
assert parsed == {"BlocksEvents"}, parsed  # of the page's own class
from specscope.app.ray import Ray
from specscope.engine.errors import SpecScopeError
service = Service(None)
build_app(service, ray=Ray())
service.close()
for address in (None, "127.0.0.1:1"):
    try:
        Ray(address).check()  # of `specscope play --ray`
    except SpecScopeError:
        continue  # Ray is not installed, or no cluster answers
from specscope.app.papers import computing
next(computing())  # imports what the Papers tab computes with
sys.exit(" and ".join({"torch", "transformers"} & set(sys.modules)) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_serve_prints_one_line_and_answers(tmp_path, monkeypatch) -> None:
    opened = FakeOpen()
    monkeypatch.setattr(server.Service.__init__, "__defaults__", (opened,))
    monkeypatch.setattr(server.uvicorn.Server, "install_signal_handlers", lambda _: None, raising=False)
    lines: list[str] = []
    ready = threading.Event()
    running: list[server._Server] = []
    original = server._Server.__init__

    def remember(self, config, notify):
        original(self, config, notify)
        running.append(self)

    monkeypatch.setattr(server._Server, "__init__", remember)

    def announce(line: str) -> None:
        lines.append(line)
        ready.set()

    results: list[int] = []
    arguments = {"port": 0, "database": tmp_path / "t.db", "pair": "bundled", "announce": announce}
    thread = threading.Thread(target=lambda: results.append(serve(**arguments)))
    thread.start()
    assert ready.wait(60), "the server did not start"
    name, _, url = lines[0].partition(": ")
    assert name == "SpecScope"
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b"SpecScope" in answer.read()
    running[0].should_exit = True
    thread.join(30)
    assert results == [0]
    assert len(lines) == 1
    assert len(opened.opened) == 1, "models load before the first prompt"
    assert opened.opened[0].closed


@pytest.mark.parametrize(
    ("body", "named", "told"),
    [
        ("close_stream", "a", ["1"]),
        ("estimation", "a", []),
        ("close_stream", "b", []),
        ("close_stream", "", []),
    ],
)
def test_a_call_that_joins_is_told_whether_its_pages_stream_has_ended(body, named, told) -> None:
    headers = list[str]()

    async def app(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f'data: {{"msg": "{body}"}}'.encode()})

    async def send(message) -> None:
        headers.extend(
            value.decode() for name, value in message.get("headers", ()) if name == b"x-stream-ended"
        )

    async def calls() -> None:
        late = guard.LateJoins(app)
        for path, stream in ((guard.RESULTS, "a"), ("/", named), (guard.JOIN, named)):
            await late(
                {"type": "http", "path": path, "headers": [(b"x-stream", stream.encode())]}, None, send
            )

    asyncio.run(calls())
    assert headers == told
