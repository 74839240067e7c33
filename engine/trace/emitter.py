"""What a run tells of its rounds: decisions, commits and rounds, with the piece of text of every token named in them.

Telling waits until the devices have their next job: it is then done while they work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from engine.trace.events import Commit, Copied, Decision, Document, Piece, Pooled, Round, Row
from engine.types import DraftToken, Judged, PoolUpdate, Verdict

if TYPE_CHECKING:
    import numpy as np


class Committed(NamedTuple):
    """One token that became output, and the text it added."""

    position: int
    token: int
    origin: str
    text: str


class _Drafted(NamedTuple):
    sequence: int
    position: int
    token: DraftToken


class TraceEmitter:
    """Turns verdicts into events, and remembers drafted tokens until their fate is known.

    Args:
        emit: Takes every event.
        read: How a token id reads.
    """

    def __init__(self, emit: Callable[[Row], None], read: Callable[[int], str]) -> None:
        self._emit = emit
        self._read = read
        self._known: set[int] = set()
        self._prompts: set[int] = set()
        self._drafted: dict[int, _Drafted] = {}
        self._numbers = count()
        self._untold: list[Callable[[], None]] = []

    def drafted(self, sequence: int, position: int, token: DraftToken) -> DraftToken:
        """Remember a drafted token; return it with a number of its own."""
        self.catch_up()
        token = replace(token, number=next(self._numbers))
        self._drafted[token.number] = _Drafted(sequence, position, token)
        return token

    def later(self, tell: Callable[[], None]) -> None:
        """Put something off until `catch_up`."""
        self._untold.append(tell)

    def catch_up(self) -> None:
        """Tell what was put off."""
        while self._untold:
            self._untold.pop(0)()

    def round(self, step: int, verdict: Verdict, committed: list[Committed], now: int) -> None:
        """Tell what a verdict decided and which tokens it brought."""
        sequence = verdict.sequence
        for judged in verdict.judged:
            self._decide(step, verdict, judged)
        for c in committed:
            self._name(c.token)
            self._emit(Commit(step, sequence, c.position, c.token, c.origin, c.text, now))
        if verdict.draft.source is not None:
            self._emit(Copied(step, sequence, *verdict.draft.source, length=len(verdict.draft)))
        counts = (len(verdict.draft), len(verdict.accepted), len(committed))
        self._emit(Round(step, sequence, verdict.mode, *counts, now, verdict.span))

    def pooled(self, step: int, verdict: Verdict, pool: PoolUpdate) -> None:
        """Tell what a round tried from a pool of n-grams, and what the pool learnt in it."""
        tried = verdict.draft.grams
        for gram in (*pool.window, *tried, *pool.gained):
            self._name(*gram)
        where = (step, verdict.sequence, pool.model)
        self._emit(Pooled(*where, pool.window, tried, pool.gained, pool.size))

    def prompt(self, sequence: int, tokens: np.ndarray) -> None:
        """Tell once how the tokens of a prompt read, for a sequence whose drafts are copied."""
        if sequence not in self._prompts:
            self._prompts.add(sequence)
            self._name(*tokens.tolist())

    def document(self, number: int, tokens: tuple[int, ...]) -> None:
        """Tell of a text that drafts may be copied from."""
        self._name(*tokens)
        self._emit(Document(number, tokens))

    def discard(self, step: int, sequence: int, alive: Collection[int] = ()) -> None:
        """Tell that what was drafted of a sequence and never judged is discarded, but for the numbers still alive."""
        for number, drafted in list(self._drafted.items()):
            if drafted.sequence == sequence and number not in alive:
                del self._drafted[number]
                t = drafted.token
                self._name(t.id, *(token for token, _ in t.top))
                where = (step, sequence, -1, -1, drafted.position, t.id)
                fate = ("", "discarded", t.span, -1, (), t.top)
                self._emit(Decision(*where, None, _known(t.probability), None, *fate))

    def _decide(self, step: int, verdict: Verdict, j: Judged) -> None:
        drafted = verdict.draft.tokens[j.node] if j.node >= 0 else None
        if drafted is not None:
            self._drafted.pop(drafted.number, None)
        tops = (*j.top_p, *(drafted.top if drafted else ()))
        self._name(j.token, *(token for token, _ in tops))
        q = j.q if drafted is None or not math.isnan(j.q) else drafted.probability
        untested = j.outcome == "discarded" and math.isnan(j.p)
        self._emit(
            Decision(
                step,
                verdict.sequence,
                j.node,
                j.parent,
                j.position,
                j.token,
                _known(j.p),
                _known(q),
                _known(j.u),
                "" if untested else j.rule,
                j.outcome,
                drafted.span if drafted else -1,
                -1 if untested else verdict.span,
                j.top_p,
                drafted.top if drafted else (),
            )
        )

    def _name(self, *tokens: int) -> None:
        for token in tokens:
            if token not in self._known:
                self._known.add(token)
                self._emit(Piece(token, self._read(token)))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
