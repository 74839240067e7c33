"""My server: the addresses of running servers, what each of them is, and what it will show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from specscope.app.render.html import text
from specscope.app.tabs.requests import MOST_SERVERS, lines_of
from specscope.app.tabs.wiring import QUIET, SMALL
from specscope.engine.errors import SpecScopeError
from specscope.engine.servers.session import connect

ABOUT = (
    "A running llama.cpp, vLLM or other server with OpenAI's routes, one address per line: each gets a "
    "pane of its own, such as one with drafts and one without."
)
HINT = "http://127.0.0.1:8080"


def build_server(add: Callable[[str, Any], Any]) -> None:
    """Add the controls of servers; a button asks what they are."""
    servers = gr.Textbox(
        "",
        label="Addresses",
        info=ABOUT,
        placeholder=HINT,
        elem_id="servers",
        lines=1,
        max_lines=MOST_SERVERS,
    )
    add("servers", servers)
    key = gr.Textbox(
        "",
        label="Key",
        info="Only for servers that ask for one: sent to each of these servers, and stored nowhere. Empty: SPECSCOPE_SERVER_KEY.",
        type="password",
        html_attributes=gr.InputHTMLAttributes(autocomplete="off"),
        elem_id="server-key",
    )
    add("server_key", key)
    sent = "Off: only servers of this machine are asked."
    remote = gr.Checkbox(False, label="Send my prompts to other machines, too", info=sent, elem_id="remote")
    add("remote", remote)
    chances = "llama.cpp: of tokens that it did not verify. It takes time, so leave it out of a race."
    add(
        "probabilities",
        gr.Checkbox(False, label="Ask for p of the tokens", info=chances, elem_id="probabilities"),
    )
    at_once = "Sent at the same time, blank lines separate them: how the server decodes several requests."
    add(
        "together",
        gr.Textbox("", label="More prompts", info=at_once, elem_id="together", lines=1, max_lines=8),
    )
    ask = gr.Button("What will it show?", elem_id="ask-server", **SMALL)
    answer = gr.HTML("", elem_id="server-answer")
    gr.on([ask.click, servers.submit], asked, [servers, key, remote], answer, **QUIET)


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
