"""ASGI middleware: the page's own scripts, run before Gradio's."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCRIPT = b"<script"


class Early:
    """Put HTML into the page `/`, before its first script.

    Gradio adds the HTML of its parameter `head` when its own script runs. Scripts in it load while
    components call them: a page on a busy machine would stay half dead. A browser runs the deferred
    scripts of the page in their order, Gradio's among them.

    Args:
        app: Answers `/` with a page that has a script.
        html: The HTML; its scripts are deferred.
    """

    def __init__(self, app: ASGIApp, html: str) -> None:
        self.app = app
        self.html = html.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
