"""Turns rounds into events: decisions, commits and rounds, with the text of every token in them.

Events are deferred until the workers have their next job, and emitted while the workers are busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, get_args

from specscope.engine.trace.events import Commit, Copied, Decision, Piece, Pooled, Round, Row, types_of
from specscope.engine.trace.ranges import TokenId
from specscope.engine.types import DraftToken, Judged, PoolUpdate, Verdict

if TYPE_CHECKING:
    import numpy as np


P = ParamSpec("P")


class Committed(NamedTuple):
    """One committed token, and the text it added."""

    position: int
    token: int
    origin: str
    text: str


class _Drafted(NamedTuple):
    """A drafted token and its place."""

    sequence: int
    position: int
    token: DraftToken


class TraceEmitter:
    """Turns verdicts into events, and remembers drafted tokens until they are decided.

    `read` maps a token id to its text.
    """

    def __init__(self, emit: Callable[[Row], None], read: Callable[[int], str]) -> None:
        self._emit = emit
        self._read = read
        self._known: set[int] = set()
        """Token ids whose text has been emitted."""
        self._prompts: set[int] = set()
        """Sequences whose prompt tokens have been emitted."""
        self._undecided: dict[int, _Drafted] = {}
        self._numbers = count()
        self._pending: list[Callable[[], None]] = []

    def drafted(self, sequence: int, position: int, token: DraftToken) -> DraftToken:
        """Remember a drafted token; return it with a number that is unique in the run."""
        self.flush()
        token = replace(token, number=next(self._numbers))
        self._undecided[token.number] = _Drafted(sequence, position, token)
        return token

    def defer(self, emit: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call one of the methods below at the next `flush`."""
        self._pending.append(partial(emit, *args, **kwargs))

    def flush(self) -> None:
        while self._pending:
            self._pending.pop(0)()

    def round(self, step: int, verdict: Verdict, committed: list[Committed], now: int) -> None:
        sequence = verdict.sequence
        for judged in verdict.judged:
            self._decide(step, verdict, judged)
        for c in committed:
            self._row(Commit(step, sequence, c.position, c.token, c.origin, c.text, now))
        if verdict.draft.source is not None:
            self._row(Copied(step, sequence, *verdict.draft.source, length=len(verdict.draft)))
        self.rows(row(step, sequence) for row in verdict.draft.rows)
        counts = (len(verdict.draft), len(verdict.accepted), len(committed))
        self._row(Round(step, sequence, verdict.mode, *counts, now, verdict.span))

    def pool(self, step: int, verdict: Verdict, update: PoolUpdate) -> None:
        """Emit the n-grams that a round tried from a pool and those that the pool learnt."""
        where = (step, verdict.sequence, update.model)
        self._row(Pooled(*where, update.window, verdict.draft.grams, update.gained, update.size))

    def rows(self, rows: Iterable[Row]) -> None:
        """Emit rows, each after the texts of its token ids."""
        for row in rows:
            self._row(row)

    def prompt(self, sequence: int, tokens: np.ndarray) -> None:
        """Emit the texts of a prompt's tokens, once, for a sequence whose drafts are copied."""
        if sequence not in self._prompts:
            self._prompts.add(sequence)
            self._name(*tokens.tolist())

    def discard(self, step: int, sequence: int, kept: Collection[int] = ()) -> None:
        """Emit the undecided tokens of a sequence but those with `kept` numbers as discarded."""
        for number, drafted in list(self._undecided.items()):
            if drafted.sequence == sequence and number not in kept:
                del self._undecided[number]
                t = drafted.token
                where = (step, sequence, -1, -1, drafted.position, t.id)
                rest = ("", "discarded", t.span, -1, (), t.top)
                self._row(Decision(*where, None, _or_none(t.probability), None, *rest))

    def discard_all(self, step: int) -> None:
        for sequence in sorted({drafted.sequence for drafted in self._undecided.values()}):
            self.discard(step, sequence)

    def _decide(self, step: int, verdict: Verdict, j: Judged) -> None:
        """Emit one decision; a node that no decision reached has no rule and no target span."""
        drafted = verdict.draft.tokens[j.node] if j.node >= 0 else None
        if drafted is not None:
            self._undecided.pop(drafted.number, None)
        top_q = drafted.top if drafted else ()
        q = j.q if drafted is None or not math.isnan(j.q) else drafted.probability
        unreached = j.outcome == "discarded" and math.isnan(j.p)
        self._row(
            Decision(
                step,
                verdict.sequence,
                j.node,
                j.parent,
                j.position,
                j.token,
                _or_none(j.p),
                _or_none(q),
                _or_none(j.u),
                "" if unreached else j.rule,
                j.outcome,
                drafted.span if drafted else -1,
                -1 if unreached else verdict.span,
                j.top_p,
                top_q,
            )
        )

    def _row(self, row: Row) -> None:
        for name, hint in _with_tokens(type(row)):
            self._name(*_tokens(getattr(row, name), hint))
        self._emit(row)

    def _name(self, *tokens: int) -> None:
        for token in tokens:
            if token not in self._known:
                self._known.add(token)
                self._emit(Piece(token, self._read(token)))


@cache
def _with_tokens(kind: type[Row]) -> list[tuple[str, Any]]:
    """Return the fields that hold token ids, with their types."""
    return [(name, hint) for name, hint in types_of(kind).items() if _has_tokens(hint)]


def _has_tokens(hint: Any) -> bool:
    return hint is TokenId or any(map(_has_tokens, get_args(hint)))


def _tokens(value: Any, hint: Any) -> Iterator[int]:
    """Yield the token ids in a value of this type."""
    if hint is TokenId:
        yield value
    elif _has_tokens(hint):
        parts = get_args(hint)
        for i, part in enumerate(value):
            yield from _tokens(part, parts[0] if parts[-1] is ... else parts[i])


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
