"""The conversation that the methods continue. Pure; the page stores it, not the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from app.render.html import text
from traces.export.report import LONG, beginning


class Past(NamedTuple):
    """A message and the answer that the conversation continues."""

    user: str
    answer: str
    who: str
    """The method that wrote the answer, with its settings."""
    shown: tuple[str, ...] = ()
    """Names of the turn's runs in the viewer."""


@dataclass(frozen=True, slots=True)
class Chat:
    """Past turns, and the current one with all its answers."""

    past: tuple[Past, ...] = ()
    prompt: str = ""
    """The message being answered; empty before the first."""
    runs: tuple[str, ...] = ()
    """Tickets of its runs."""
    answers: tuple[tuple[str, str], ...] = ()
    """(method with its settings, text) per pane; empty until all runs have ended."""
    shown: tuple[str, ...] = ()
    """Names of the current turn's runs in the viewer; empty until all runs have ended."""
    race: str = ""
    """Id of the current turn's comparison, which is its address; empty before the first."""

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Chat:
        """Parse a value of `to_json`; return an empty conversation for any other value."""
        try:
            rows = dict(value or {})
            past = tuple(_past(*turn) for turn in rows.get("past", ()))
            answers = tuple((str(who), str(text)) for who, text in rows.get("answers", ()))
            runs, shown = (tuple(map(str, rows.get(name, ()))) for name in ("runs", "shown"))
            return cls(past, str(rows.get("prompt", "")), runs, answers, shown, str(rows.get("race", "")))
        except (TypeError, ValueError):
            return cls()

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "past": [list(turn) for turn in self.past]}

    def messages(self, system: str | None) -> list[dict[str, str]]:
        """Return the prompt of every method: system prompt, past turns, current message."""
        rows = [("system", system)] if system and system.strip() else []
        for turn in self.past:
            rows += [("user", turn.user), ("assistant", turn.answer)]
        rows.append(("user", self.prompt))
        return [{"role": role, "content": content} for role, content in rows]

    def asked(self, prompt: str, chosen: int = 0) -> Chat:
        """Continue the answer of pane `chosen` with a new message.

        A turn without an answer (failed, or stopped before its first token) is dropped.
        """
        return Chat((*self.past, *self._settled(chosen)), prompt)

    def _settled(self, chosen: int) -> tuple[Past, ...]:
        if not 0 <= chosen < len(self.answers):
            return ()
        who, answer = self.answers[chosen]
        return (Past(self.prompt, answer, who, self.shown),) if answer.strip() else ()

    @property
    def turns(self) -> tuple[tuple[str, ...], ...]:
        """The names of the runs of every turn that has any, the current one last."""
        return tuple(filter(None, (*(turn.shown for turn in self.past), self.shown)))

    def started(self, runs: tuple[str, ...], race: str = "") -> Chat:
        return replace(self, runs=runs, answers=(), shown=(), race=race)

    def answered(self, answers: tuple[tuple[str, str], ...], shown: tuple[str, ...] = ()) -> Chat:
        return replace(self, answers=answers, shown=shown)


def _past(user: object, answer: object, who: object, shown: Iterable[object] = ()) -> Past:
    return Past(str(user), str(answer), str(who), tuple(map(str, shown)))


def conversation(chat: Chat) -> str:
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
