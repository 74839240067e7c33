"""The conversation: which messages the methods see next. Pure; it lives in the page, the server keeps none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple


class Past(NamedTuple):
    """A turn that later ones build on."""

    user: str
    answer: str
    who: str
    """The method whose answer it was."""


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns that are settled, and the one on show with all its answers."""

    past: tuple[Past, ...] = ()
    prompt: str = ""
    """The message being answered; empty before the first."""
    runs: tuple[str, ...] = ()
    """Tickets of its runs."""
    answers: tuple[tuple[str, str], ...] = ()
    """(method's title, text) per pane, once they ended."""

    @classmethod
    def of(cls, value: Mapping[str, Any] | None) -> Chat:
        """Return the conversation that `to_json` wrote; an empty one for anything else."""
        try:
            rows = dict(value or {})
            past = tuple(Past(*map(str, turn)) for turn in rows.get("past", ()))
            answers = tuple((str(who), str(text)) for who, text in rows.get("answers", ()))
            return cls(past, str(rows.get("prompt", "")), tuple(map(str, rows.get("runs", ()))), answers)
        except (TypeError, ValueError):
            return cls()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {**asdict(self), "past": [list(turn) for turn in self.past]}

    def messages(self, system: str | None) -> list[dict[str, str]]:
        """Return what every method gets: system prompt, settled turns, the message being answered."""
        rows = [("system", system)] if system and system.strip() else []
        for turn in self.past:
            rows += [("user", turn.user), ("assistant", turn.answer)]
        rows.append(("user", self.prompt))
        return [{"role": role, "content": content} for role, content in rows]

    def asked(self, prompt: str, chosen: int = 0) -> Chat:
        """Return the conversation with a new message, after the answer of pane `chosen`.

        A turn without an answer (stopped before its first token, or failed) is left out.
        """
        return Chat((*self.past, *self._settled(chosen)), prompt)

    def _settled(self, chosen: int) -> tuple[Past, ...]:
        if not 0 <= chosen < len(self.answers):
            return ()
        who, answer = self.answers[chosen]
        return (Past(self.prompt, answer, who),) if answer.strip() else ()

    def started(self, runs: tuple[str, ...]) -> Chat:
        """Return it with the tickets of the runs that answer."""
        return replace(self, runs=runs, answers=())

    def answered(self, answers: tuple[tuple[str, str], ...]) -> Chat:
        """Return it with every pane's answer."""
        return replace(self, answers=answers)
