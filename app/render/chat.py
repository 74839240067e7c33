"""The conversation above the panes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.render.html import text

if TYPE_CHECKING:
    from app.tabs.chat import Chat


LONG = 300
"""Characters from which on a prompt is shown small."""


def conversation(chat: Chat) -> str:
    """Return the earlier turns, folded, and the message being answered."""
    if not chat.prompt:
        return ""
    past = "".join(
        f'<div class="app-said app-user"><b>You</b><p>{text(user)}</p></div>'
        f'<div class="app-said"><b>{text(who)}</b><p>{text(answer)}</p></div>'
        for user, answer, who in chat.past
    )
    if past:
        turns = f"{len(chat.past)} earlier turn{'s' if len(chat.past) > 1 else ''}"
        past = f"<details class='app-past'><summary>{turns} in the context</summary>{past}</details>"
    # A long prompt scrolls, also by keys.
    look = 'class="app-prompt app-long" tabindex="0"' if len(chat.prompt) > LONG else 'class="app-prompt"'
    return f"{past}<h2 {look}>{text(chat.prompt)}</h2>"
