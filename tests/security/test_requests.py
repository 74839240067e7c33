"""Attacks by requests: other sites, bad headers, large and slow bodies, open connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from starlette.responses import PlainTextResponse

from specscope.app.web import limits
from specscope.app.web.guard import HEADERS, Boundary
from specscope.app.web.limits import MAX_BODY, BoundedConnection, SmallBodies
from specscope.app.web.page import CHANGED, MALFORMED, MAX_SESSIONS
from specscope.app.web.routes import _download
from specscope.app.web.server import bind, protect
from specscope.engine.errors import UsageError
from tests.security.conftest import HOST, asked, inputs_of


def guarded(headers) -> bool:
    return {name: headers.get(name) for name in HEADERS} == HEADERS


EVIL = "evil.example localhost:9999 127.0.0.1:9999 127.0.0.1 [ [::1 127.0.0.1:7860@evil.example 127.0.0.1:7860.evil.example"


@pytest.mark.parametrize("origin", ["null", "", *(f"http://{name}" for name in EVIL.split())])
def test_another_site_or_port_neither_reads_nor_writes(client, origin) -> None:
    for call in ("GET /config", "GET /", "OPTIONS /config", "GET /specscope/model"):
        method, path = call.split()
        headers = {"Origin": origin, "Access-Control-Request-Method": "GET"}
        answer = client.request(method, path, headers=headers)
        assert answer.status_code == 403, path
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert guarded(answer.headers)
    for path in ("/gradio_api/queue/join", "/specscope/import"):
        assert client.post(path, content=b"{}", headers={"Origin": origin}).status_code == 403


def test_the_servers_page_reads_and_writes(client) -> None:
    own = {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}
    assert client.get("/config", headers=own).status_code == 200
    assert client.post("/specscope/import", content=b"x", headers=own).status_code == 422


@pytest.mark.parametrize("origin", ["cross-site", "same-site"])
def test_a_script_picture_or_frame_of_another_site_is_refused_and_a_link_is_followed(client, origin) -> None:
    for call in ("no-cors script", "no-cors image", "navigate iframe", "cors empty"):
        mode, kind = call.split()
        headers = {"Sec-Fetch-Site": origin, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": kind}
        assert client.get("/config", headers=headers).status_code == 403
    link = {"Sec-Fetch-Site": origin, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=link).status_code == 200
    assert client.post("/specscope/import", headers=link).status_code == 403


HOSTS = ("", "evil.example", "127.0.0.1.evil.example", "[", "[::1", "a:b:c", "127.0.0.1:x")


@pytest.mark.parametrize("host", HOSTS)
def test_another_name_of_the_server_is_refused(client, host) -> None:
    answer = client.get("/config", headers={"Host": host})
    assert answer.status_code == 400
    assert guarded(answer.headers)


@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1"])
def test_the_ipv6_loopback_address_is_a_name_of_the_server(host) -> None:
    client = TestClient(protect(PlainTextResponse("inside"), host, None), base_url="http://[::1]:7860")
    assert client.get("/").status_code == 200
    own = {"Origin": "http://[::1]:7860"}
    assert client.post("/specscope/import", content=b"x", headers=own).status_code == 200
    assert client.get("/", headers={"Host": "[::2]:7860"}).status_code == 400


@pytest.mark.parametrize("host", ["\udcff", "a" * 100 + ".b", "x" * 5000, "", "..", "no such host"])
def test_an_invalid_host_is_bad_usage(host) -> None:
    with pytest.raises(UsageError, match=r"--host|cannot listen on"):
        bind(host, 0)


def test_a_failure_anywhere_is_answered_in_one_line_with_headers(capfd) -> None:
    async def broken(scope, receive, send) -> None:
        raise RuntimeError("a secret\nof \x1b[31mthe server")

    async def broken_later(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError

    answer = TestClient(Boundary(broken)).get("/")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert guarded(answer.headers)
    assert guarded(TestClient(Boundary(broken_later)).get("/").headers)
    TestClient(Boundary(broken)).get("/" + "x" * 5000)
    written = capfd.readouterr().err
    assert [line.count("failed: RuntimeError") for line in written.splitlines()] == [1, 1, 1]
    assert "\x1b" not in written


CALLS = (
    *(b"", b"{", b"null", b"[]", b"\xff", b'"x"', b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000),
    b'{"fn_index":"x","session_hash":[],"data":{}}',
    b'{"fn_index":21,"session_hash":"b","data":[1]}',
    b'{"fn_index":21,"session_hash":"\\ud800","data":["\\ud800",null],"trigger_id":1e99}',
)


@pytest.mark.parametrize("body", CALLS)
def test_a_malformed_queue_call_is_answered_without_a_traceback(client, capfd, body) -> None:
    answer = client.post("/gradio_api/queue/join", content=body, headers={"Content-Type": "application/json"})
    if answer.status_code == 200:
        client.get("/gradio_api/queue/data", params={"session_hash": "b"})
    else:
        assert 400 <= answer.status_code <= 500
    assert guarded(answer.headers)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_a_call_of_an_unknown_handler_is_refused(client, capfd) -> None:
    for number in (99999, -1):
        call = {"fn_index": number, "session_hash": "a", "data": []}
        answer = client.post("/gradio_api/queue/join", json=call)
        assert (answer.status_code, answer.text) == (404, "the page has no such handler")
        assert guarded(answer.headers)
    assert capfd.readouterr() == ("", "")


def test_a_stream_of_an_unknown_session_ends_without_an_error(client, capfd) -> None:
    answers = list[dict]()

    async def send(message) -> None:
        answers.append(message)

    async def ask() -> None:
        sent = [{"type": "http.request", "body": b""}]

        async def receive() -> dict:
            return sent.pop() if sent else await asyncio.Event().wait()  # it stays connected

        path, headers = "/gradio_api/queue/data", [(b"host", b"127.0.0.1:7860")]
        scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": headers}
        scope |= {"query_string": b"session_hash=x", "root_path": "", "http_version": "1.1", "scheme": "http"}
        await asyncio.wait_for(client.app(scope, receive, send), 60)

    client.portal.call(ask)
    assert answers[0]["status"] == 200
    assert [message.get("more_body") for message in answers][-1] is False, "the answer is complete"
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("folder", ["/assets/", "/static/", "/specscope/files/"])
@pytest.mark.parametrize("name", ["x" * 5000, "x" * 260, "%C3%A9" * 200, "x/" * 3000])
def test_a_path_longer_than_a_files_name_is_unknown(client, capfd, folder, name) -> None:
    answer = client.get(folder + name)
    assert answer.status_code == 404
    assert guarded(answer.headers)
    assert capfd.readouterr() == ("", "")


HALF = "a text holds half of a character, perhaps of an emoji; remove it"
HALVES = ("\ud83d", "a \udc00 b", {"\ud800": 1}, [["\udfff"]])
EVENT = ("run", "error", "offset", "listed", "ticked")
ODD_CALLS = [
    *(
        (name, half, None)
        for name in ("ask", "find", "refresh", "show_replay", "run", "forget")
        for half in HALVES
    ),
    *((name, None, dict.fromkeys(EVENT, "\ud83d")) for name in ("open_one", "pick", "stop", "delete")),
]
"""Handler, its inputs, and the data of its event."""


@pytest.mark.parametrize(("handler", "value", "event"), ODD_CALLS, ids=ascii)
def test_half_of_a_character_is_refused_in_one_line(client, page, capfd, handler, value, event) -> None:
    answer = asked(client, page, handler, [value] * inputs_of(page, handler), event)
    assert (answer.count("process_completed"), HALF in answer) == (1, True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("state", ["x", 3, [1]], ids=str)
@pytest.mark.parametrize("handler", ["find", "pick", "turn_page", "draw"])
def test_a_state_of_another_form_is_refused_and_none_is_an_empty_one(client, page, capfd, handler, state):
    event = {"offset": 0, "listed": [], "ticked": []}
    size = inputs_of(page, handler)
    states = [{}] * size if handler == "draw" else ["", state][-size:]
    assert MALFORMED in asked(client, page, handler, states, event)
    if handler != "draw":
        assert '"success":true' in asked(client, page, handler, ["", None][-size:], event)
    assert capfd.readouterr() == ("", "")


def test_a_choice_whose_list_has_changed_is_refused_with_the_reason(client, page, capfd) -> None:
    assert CHANGED in asked(client, page, "offer_values", ["a method of another list", ""])
    assert capfd.readouterr() == ("", "")


def test_a_stored_run_with_a_japanese_name_is_downloaded() -> None:
    answer = _download("x", "text/plain", 'specscope-実行"\r\n-1.json')
    assert answer.headers["content-disposition"] == (
        'attachment; filename="specscope-_____-1.json"; '
        "filename*=UTF-8''specscope-%E5%AE%9F%E8%A1%8C___-1.json"
    )


def test_a_body_over_the_limit_is_refused_whether_its_size_is_declared_or_not(client) -> None:
    too_much = b'{"data":["' + b"x" * MAX_BODY + b'"]}'
    for path in ("/gradio_api/queue/join", "/gradio_api/upload", "/specscope/model", "/nowhere"):
        for content in (too_much, (too_much[i : i + 2**16] for i in range(0, len(too_much), 2**16))):
            answer = client.post(path, content=content)
            assert answer.status_code in (404, 413), path
            assert guarded(answer.headers)
    assert client.post("/gradio_api/queue/join", content=too_much).status_code == 413


@pytest.mark.parametrize("pause", [0, 1])
def test_a_body_that_takes_too_long_is_refused(monkeypatch, pause):
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.05 if pause else 60)
    received, answers = list[bytes](), list[dict]()

    async def receive() -> dict:
        await asyncio.sleep(pause)
        received.append(b"x" * 2**16)
        return {"type": "http.request", "body": received[-1], "more_body": True}

    async def send(message) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    never = PlainTextResponse("the request was handled")
    asyncio.run(SmallBodies(never, unlimited="/import")(scope, receive, send))
    assert answers[0]["status"] == (408 if pause else 413)
    assert len(received) == (0 if pause else MAX_BODY // 2**16 + 1)
    assert not pause or (b"connection", b"close") in answers[0]["headers"]


# Connections, over a real socket.


LARGE = 16 * 2**20
SMALL = 48 * 2**10
"""Less than asyncio keeps of an answer before it tells its protocol."""
GET = b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch, buffer: int = 0, **bounds: float) -> Iterator[int]:
    """Serve a small application with BoundedConnection and other bounds; yield its port.

    The system holds about `buffer` bytes of answers, if given.
    """
    app = FastAPI()

    @app.post("/size")
    async def size(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    @app.get("/{size}")
    def answer(size: int) -> PlainTextResponse:
        return PlainTextResponse("x" * size)

    for name, bound in bounds.items():
        monkeypatch.setattr(limits, name, bound)
    listener = bind("127.0.0.1", 0)
    if buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    more = {"http": BoundedConnection, "log_level": "critical", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(SmallBodies(app, unlimited=""), **more))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
        assert not thread.is_alive()


def peer_of(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


POST = b"POST /size HTTP/1.1\r\nHost: x\r\n"
CLOSING = POST + b"Connection: close\r\nContent-Length: 3\r\n\r\n"


def rest(peer: socket.socket, pause: float = 0, part: int = 4096) -> bytes:
    """Read until the server closes the connection, with a pause after each part."""
    read = list[bytes]()
    with suppress(ConnectionError):
        while some := peer.recv(part):
            read.append(some)
            time.sleep(pause)
    return b"".join(read)


def test_half_open_requests_are_closed_and_others_are_answered(monkeypatch) -> None:
    with listening(monkeypatch, HEAD_SECONDS=3) as port, ExitStack() as stack:
        silent = [stack.enter_context(peer_of(port)) for _ in range(100)]
        for number, peer in enumerate(silent):
            peer.sendall((b"", POST[:13], POST + b"X-")[number % 3])
        other = stack.enter_context(peer_of(port))
        other.sendall(CLOSING + b"abc")
        assert rest(other).endswith(b"\r\n\r\n3")
        for peer in silent:
            rest(peer)  # TimeoutError if it stays open


def test_a_head_sent_byte_by_byte_is_closed_at_its_deadline(monkeypatch) -> None:
    with listening(monkeypatch, HEAD_SECONDS=0.3) as port, peer_of(port) as peer:
        begun = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - begun < 60:
                peer.sendall(b"X")
                time.sleep(0.02)
        assert time.monotonic() - begun < 60


def test_a_second_request_on_a_connection_has_a_deadline_and_a_body_may_take_longer(monkeypatch) -> None:
    with listening(monkeypatch, HEAD_SECONDS=2) as port, peer_of(port) as peer, peer_of(port) as slow:
        slow.sendall(CLOSING + b"a")
        peer.sendall(POST + b"Content-Length: 3\r\n\r\nabc")
        assert peer.recv(4096).startswith(b"HTTP/1.1 200")
        peer.sendall(b"POST /size")
        rest(peer)
        time.sleep(0.5)
        slow.sendall(b"bc")
        assert rest(slow).endswith(b"3")


def test_connections_over_the_limit_are_closed_at_once(monkeypatch) -> None:
    with listening(monkeypatch, CONNECTIONS=8) as port, ExitStack() as stack:
        for peer in [stack.enter_context(peer_of(port)) for _ in range(12)][8:]:
            rest(peer)


def refreshed(client, page, session: str, *, read: bool = True) -> str:
    return asked(client, page, "refresh", ["", None], session=session, read=read)


def test_sessions_beyond_a_number_are_dropped(client, page, monkeypatch):
    holder = page.state_holder
    assert holder.capacity == MAX_SESSIONS
    refreshed(client, page, "first")
    assert holder.session_data["first"].config_values == {}
    monkeypatch.setattr(holder, "capacity", len(holder.session_data))
    for number in range(holder.capacity):
        refreshed(client, page, f"later{number}")
    assert len(holder.session_data) == holder.capacity
    assert "first" not in holder.session_data


def test_a_session_with_unread_answers_gets_no_more(client, page, monkeypatch) -> None:
    monkeypatch.setattr("specscope.app.web.page.MAX_UNREAD", 3)
    for _ in range(5):
        refreshed(client, page, "silent", read=False)
    assert "too many answers are unread" in refreshed(client, page, "silent")


@pytest.mark.parametrize(("size", "buffer"), [(LARGE, 0), (SMALL, 4096)])
def test_an_answer_that_nobody_takes_is_dropped(monkeypatch, size, buffer) -> None:
    with listening(monkeypatch, buffer, SEND_SECONDS=1) as port, socket.socket() as peer:
        if buffer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        peer.settimeout(30)
        peer.connect(("127.0.0.1", port))
        peer.sendall(GET % size)
        time.sleep(4)
        assert len(rest(peer)) < size


def test_an_answer_that_is_taken_slowly_is_complete(monkeypatch) -> None:
    with listening(monkeypatch, SEND_SECONDS=2) as port, peer_of(port) as peer:
        peer.sendall(GET % LARGE)
        assert len(rest(peer, 0.1, 2**20)) > LARGE


def test_answers_that_nobody_takes_have_a_limit_over_all_connections(monkeypatch) -> None:
    with listening(monkeypatch, MOST_UNREAD=3 * LARGE) as port, ExitStack() as stack:
        peers = [stack.enter_context(peer_of(port)) for _ in range(8)]
        for peer in peers:
            peer.sendall(GET % LARGE)
        time.sleep(3)
        assert 1 <= sum(len(rest(peer)) > LARGE for peer in peers) <= 3
