"""My server: what the named servers are, and what each of them will show."""

from __future__ import annotations

from typing import Any

import gradio as gr

from specscope.app.render.html import text
from specscope.app.tabs.requests import MOST_SERVERS, lines_of
from specscope.app.tabs.settings import Controls
from specscope.app.tabs.wiring import QUIET, SMALL
from specscope.engine.errors import SpecScopeError
from specscope.engine.servers.session import connect


def build_question(made: Controls[Any]) -> None:
    """Add a button that asks the named servers what they are."""
    ask = gr.Button("What will it show?", elem_id="ask-server", **SMALL)
    answer = gr.HTML("", elem_id="server-answer")
    given = [made[name] for name in ("servers", "server_key", "remote")]
    gr.on([ask.click, made["servers"].submit], asked, given, answer, **QUIET)


def asked(servers: str, key: str, remote: bool) -> str:
    """Return a line for each server: what it is and shows, or why it cannot be asked."""
    addresses = lines_of(servers)
    if not addresses:
        return _line("Type the address of a server first.", "ss-bad")
    return "".join(
        _about(address, key.strip() or None, remote=remote) for address in addresses[:MOST_SERVERS]
    )


def _about(address: str, key: str | None, *, remote: bool) -> str:
    try:
        return _line(connect(address, key=key, remote=remote).found.line)
    except SpecScopeError as error:
        return _line(str(error), "ss-bad")


def _line(message: str, kind: str = "") -> str:
    return f'<p class="app-note {kind}" role="status">{text(message)}</p>'
