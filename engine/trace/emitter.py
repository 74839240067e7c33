"""Emits the rows of an engine's rounds, with the text of every token in them.

Rows are deferred until the workers have their next job, and emitted while the workers are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, get_args

from specscope.engine.trace.events import Piece, Pooled, Row, types_of
from specscope.engine.trace.ranges import TokenId
from specscope.engine.trace.rows import discarded, rows_of

if TYPE_CHECKING:
    import numpy as np

    from specscope.engine.trace.rows import Committed
    from specscope.engine.types import DraftToken, PoolUpdate, Verdict

P = ParamSpec("P")


class _Drafted(NamedTuple):
    """A drafted token and its place."""

    sequence: int
    position: int
    token: DraftToken


class TraceEmitter:
    """Emits the rows of verdicts, and remembers drafted tokens until they are decided.

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
        for token in verdict.draft.tokens:
            self._undecided.pop(token.number, None)
        self.rows(rows_of(step, verdict, committed, now))

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
                self._row(discarded(step, sequence, drafted.position, drafted.token))

    def discard_all(self, step: int) -> None:
        for sequence in sorted({drafted.sequence for drafted in self._undecided.values()}):
            self.discard(step, sequence)

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
