"""The conversation above the panes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.render.html import text
from traces.export.report import LONG, beginning

if TYPE_CHECKING:
    from app.tabs.chat import Chat


def conversation(chat: Chat) -> str:
    """Return the earlier turns, folded, and the message being answered."""
    if not chat.prompt:
        return ""
    past = "".join(
        f'<div class="app-said app-user"><b>You</b>{_folded(turn.user, "p", "app-earlier")}</div>'
        f'<div class="app-said"><b>{text(turn.who)}</b><p>{text(turn.answer)}</p></div>'
        for turn in chat.past
    )
    if past:
        turns = f"{len(chat.past)} earlier turn{'s' if len(chat.past) > 1 else ''}"
        past = f"<details class='app-past'><summary>{turns} in the context</summary>{past}</details>"
    return past + _folded(chat.prompt, "h2")


def _folded(prompt: str, tag: str, look: str = "app-prompt") -> str:
    """Return a prompt; a long one shows its beginning, and all of it when it is opened."""
    if len(prompt) <= LONG:
        return f'<{tag} class="{look}">{text(prompt)}</{tag}>'
    return (
        f'<details class="{look} app-long"><summary>{text(beginning(prompt))} <em>{len(prompt):,} characters</em></summary>'
        f"<p>{text(prompt)}</p></details>"
    )
