"""The conversation above the panes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.render.html import text

if TYPE_CHECKING:
    from app.tabs.chat import Chat


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
    return f'{past}<h2 class="app-prompt">{text(chat.prompt)}</h2>'
