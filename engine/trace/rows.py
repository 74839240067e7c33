"""The rows of a round, of the engine's runs and of recorded programs. Standard library only."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, NamedTuple

from specscope.engine.trace.events import Commit, Copied, Decision, Round
from specscope.engine.types import DraftToken

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specscope.engine.trace.events import Row
    from specscope.engine.types import Judged, Verdict


_OWN = DraftToken(-1)
"""In place of a drafted token, where the token is the target's own."""


class Committed(NamedTuple):
    """One committed token, and the text it added."""

    position: int
    token: int
    origin: str
    text: str


def rows_of(step: int, verdict: Verdict, committed: Sequence[Committed], time: int) -> Iterator[Row]:
    """Yield the decisions of a verdict, the tokens committed by it, and the round."""
    sequence, draft = verdict.sequence, verdict.draft
    for judged in verdict.judged:
        yield _decision(step, verdict, judged)
    for token in committed:
        yield Commit(step, sequence, *token, time)
    if draft.source is not None:
        yield Copied(step, sequence, *draft.source, length=len(draft))
    yield from (row(step, sequence) for row in draft.rows)
    counts = (len(draft), len(verdict.accepted), len(committed))
    yield Round(step, sequence, verdict.mode, *counts, time, verdict.span)


def _decision(step: int, verdict: Verdict, j: Judged) -> Decision:
    """Return one decision; a node that no decision reached has no rule and no target span."""
    reached = j.outcome != "discarded" or (j.rule != "" and not isnan(j.p))
    token = verdict.draft.tokens[j.node] if j.node >= 0 else _OWN
    return Decision(
        step,
        verdict.sequence,
        j.node,
        j.parent,
        j.position,
        j.token,
        _or_none(j.p),
        _or_none(token.probability if isnan(j.q) else j.q),
        _or_none(j.u),
        j.rule if reached else "",
        j.outcome,
        token.span,
        verdict.span if reached else -1,
        j.top_p,
        token.top,
    )


def discarded(step: int, sequence: int, position: int, token: DraftToken) -> Decision:
    """Return the row of a drafted token that no round judges."""
    where = (step, sequence, -1, -1, position, token.id)
    chances = (None, _or_none(token.probability), None)
    return Decision(*where, *chances, "", "discarded", token.span, -1, (), token.top)


def _or_none(value: float) -> float | None:
    return None if isnan(value) else value
