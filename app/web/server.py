"""The playground's web server: Gradio behind the guards, by default on the loopback address."""

from __future__ import annotations

from specscope.app.web import gradio_import  # noqa: F401 - before Gradio: it imports Gradio in half the time

# isort: split
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specscope.app.jobs.recordings import Recordings
from specscope.app.jobs.runs import RunRequest
from specscope.app.jobs.service import Service
from specscope.app.pairs import TOY, opening
from specscope.app.ray import Ray
from specscope.app.render.theme import build_theme
from specscope.app.signals import handling
from specscope.app.web.guard import Boundary, LateJoins, Login, Refusals, unknown_handler
from specscope.app.web.limits import BoundedConnection, SmallBodies
from specscope.app.web.page import build_page
from specscope.app.web.routes import IMPORT, build_router, head, scripts
from specscope.engine.errors import UsageError
from specscope.engine.types import check_range
from specscope.traces.database.store import default_path

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
EVERYWHERE = frozenset({"0.0.0.0", "::"})
AUTH = "SPECSCOPE_AUTH"
"""Environment variable with `user:password`; --auth would show it in the list of processes."""
DEFAULT_PORT = 7860
PORTS = 100
"""Ports that are tried, from DEFAULT_PORT on, without --port."""
PAGE_S, CLOSE_S = 1.5, 3.0
"""Most seconds at the end for the page's open calls, and for runs, workers and the database."""
WAKE_S = 0.5
"""Python handles a signal that arrives just before a wait only when the wait ends."""
NO_DOCS: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None}


def build_app(
    service: Service,
    *,
    host: str = "127.0.0.1",
    auth: str | None = None,
    pair: str | None = TOY,
    ray: Ray | None = None,
) -> ASGIApp:
    """Return the web application; requests with another `Host` are refused."""
    app = FastAPI(title="SpecScope", **NO_DOCS)
    app.include_router(build_router(service))
    app = gr.mount_gradio_app(
        app,
        build_page(service, pair, ray),
        path="/",
        server_name=host,
        app_kwargs=NO_DOCS,
        footer_links=[],
        run_history=False,
        show_error=True,
        blocked_paths=["/"],  # serve no file of this machine
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        theme=build_theme(),
        head=head(),
    )
    app.routes[-1].app.add_exception_handler(KeyError, unknown_handler)  # Gradio's, mounted above
    return protect(Early(app, scripts()), host, auth)


def protect(app: ASGIApp, host: str, auth: str | None) -> ASGIApp:
    # The last wrapper sees a request first. Middleware inside the app would miss its failures.
    guarded: ASGIApp = Refusals(LateJoins(SmallBodies(app, unlimited=IMPORT)))
    guarded = Login(guarded, credentials=auth) if auth is not None else guarded
    guarded = TrustedHostMiddleware(guarded, allowed_hosts=host_names(host), www_redirect=False)
    return Boundary(guarded)


def host_names(host: str) -> list[str]:
    """Return the `Host` names that requests may use, as browsers write them."""
    if host in EVERYWHERE:
        return ["*"]  # any name of the machine
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        host = f"[{address}]" if address.version == 6 else str(address)
    return sorted({"127.0.0.1", "localhost", host.lower()})


def serve(
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    auth: str | None = None,
    unsafe: bool = False,
    database: Path | None = None,
    pair: str | None = None,
    ray: Ray | None = None,
    announce: Callable[[str], None] | None = None,
    recordings: Recordings | None = None,
    query: str = "",
) -> int:
    """Serve the playground until it is stopped, and return the exit code.

    Without a port it is 7860 or the next free one; `auth` is `user:password`; `unsafe` allows an
    address that others can reach without a login; `announce` takes the line with the address, which
    ends in `query`. With `recordings`, files of another process, no models are loaded beforehand:
    that would disturb the process.
    """
    check_exposure(host, auth, unsafe)
    listener = bind(host, port)
    service = None
    try:
        service = started = Service(database or default_path(), recordings=recordings)
        service.follower.recordings.anywhere = host in LOOPBACK
        app = build_app(service, host=host, auth=auth, pair=pair, ray=ray)

        def ready(line: str) -> None:
            (announce or partial(print, flush=True))(f"{line}{query}")
            if recordings is not None:
                started.follower.begin()
            else:
                # Load the models while the user types; the import of torch alone takes seconds.
                started.start(RunRequest(method="", prompt="", pair=pair or opening()))

        _run(app, listener, host, ready)
    finally:
        listener.close()
        if service is not None:
            with contextlib.suppress(TimeoutError):  # a model that loads; its workers end with this process
                _apart(service.close).result(CLOSE_S)
    return 0


def _run(app: ASGIApp, listener: socket.socket, host: str, ready: Callable[[str], None]) -> None:
    shown = f"[{host}]" if ":" in host else host
    line = f"SpecScope: http://{shown}:{listener.getsockname()[1]}"
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        proxy_headers=False,  # a client could fake its address
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, lambda: ready(line))
    # A shell's background job ignores Ctrl-C; a server does not.
    with handling(signal.SIGINT, signal.default_int_handler):
        page = _apart(lambda: server.run(sockets=[listener]))
        try:
            while wait([page], WAKE_S).not_done:
                pass
            page.result()
        finally:
            server.should_exit = True
            wait([page], PAGE_S)
    if server.failure is not None:
        raise server.failure


def _apart(work: Callable[[], None]) -> Future[None]:
    """Return the result of work in a thread that this process does not wait for at its end.

    A thread cannot be ended, and the page's may compute for a minute.
    """
    result = Future[None]()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            result.set_exception(error)

    Thread(target=run, daemon=True).start()
    return result


def terminated_by_exit() -> contextlib.AbstractContextManager[None]:
    """Turn SIGTERM into SystemExit(143) where Ctrl-C only ends a step."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    return handling(signal.SIGTERM, leave)


def check_exposure(host: str, auth: str | None, unsafe: bool) -> None:
    """Refuse an address that others can reach without a login, unless `unsafe` is set."""
    if auth is not None:
        user, colon, password = auth.partition(":")
        if not (user and colon and password and _is_unicode(auth)):
            raise UsageError(f"--auth (or {AUTH}) must be user:password, both not empty and valid UTF-8")
    elif host not in LOOPBACK and not unsafe:
        raise UsageError(
            f"others can reach {host}; set {AUTH} or --auth to user:password, or give --unsafe to serve without a login"
        )


def _is_unicode(text: str) -> bool:
    """Return False for a command-line text with bytes that are not UTF-8."""
    return text == text.encode(errors="replace").decode()


def bind(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on `port`; for None on 7860 or the next free port."""
    if not host or not _is_unicode(host):
        raise UsageError(f"--host is {host!r}; give an address such as 127.0.0.1")
    if port is not None:
        check_range("--port", port, 0, 65535)
    last = None
    for number in [port] if port is not None else range(DEFAULT_PORT, DEFAULT_PORT + PORTS):
        try:
            return _listen(host, number)
        except UnicodeError:  # the name is not a valid host name
            raise UsageError(f"--host is {host!r}; give an address such as 127.0.0.1") from None
        except OSError as error:
            if port is not None or error.errno != errno.EADDRINUSE:
                raise UsageError(
                    f"cannot listen on {host} port {number} ({error.strerror}); choose another with --port"
                ) from None
            last = number
    raise UsageError(f"ports {DEFAULT_PORT} to {last} are all in use on {host}; choose another with --port")


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if sys.platform != "win32":  # on Windows two servers would share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _no_cut_stream(record: logging.LogRecord) -> bool:
    return "timeout graceful shutdown exceeded" not in record.msg


class _Server(uvicorn.Server):
    """Uvicorn that calls `ready` once it answers requests, and stops if that fails."""

    failure: Exception | None = None
    """What `ready` raised. Raised inside of the loop, uvicorn would print tracebacks."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Shut down without uvicorn's line about streams that are cut: an open page is no fault."""
        logger = logging.getLogger("uvicorn.error")
        logger.addFilter(_no_cut_stream)
        try:
            await super().shutdown(sockets=list(sockets or []))
        finally:
            logger.removeFilter(_no_cut_stream)

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        await super().startup(sockets=list(sockets or []))
        if self.started:
            try:
                self._ready()
            except Exception as error:  # noqa: BLE001 - `_run` raises it
                self.failure, self.should_exit = error, True


SCRIPT = b"<script"


class Early:
    """Put HTML into the page `/`, before its first script.

    Gradio adds the HTML of its parameter `head` when its own script runs. Scripts in it load while
    components call them: a page on a busy machine would stay half dead. A browser runs the deferred
    scripts of the page in their order, Gradio's among them.
    """

    def __init__(self, app: ASGIApp, html: str) -> None:
        self.app = app
        self.html = html.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/":
            await self.app(scope, receive, send)
            return
        start: Message = {}
        body = b""

        async def keep(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                start = message
                return
            if message["type"] != "http.response.body":
                await send(message)
                return
            body += message.get("body", b"")
            if message.get("more_body"):
                return
            before, script, after = body.partition(SCRIPT)
            page = before + self.html + script + after if script else body
            if body:  # an answer to HEAD has none
                MutableHeaders(scope=start)["Content-Length"] = str(len(page))
            await send(start)
            await send({"type": "http.response.body", "body": page})

        await self.app(scope, receive, keep)
