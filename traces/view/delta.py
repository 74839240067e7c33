"""New spans and tokens of a run in progress; documents add waits, band and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from engine.trace.events import Commit, Span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.trace.events import Event


class NewSpans(TypedDict):
    """Spans in the order they ended, as in `events.Span`; times in ms since the run's start."""

    id: list[int]
    device: list[str]
    kind: list[str]
    start: list[float]
    end: list[float]
    step: list[int]
    rows: list[int]
    context: list[int]
    outcome: list[str]


class NewToken(TypedDict):
    """A committed token; fields as in `tokens.TokenView`, but `t` is ms since the run's start."""

    sequence: int
    position: int
    id: int
    text: str
    outcome: str
    step: int
    t: float


class Delta(TypedDict):
    """The new part of a run."""

    run: str
    """Id of the run; empty before its header."""
    cursor: int
    """Where the next delta begins."""
    ended: bool
    spans: NewSpans
    tokens: list[NewToken]


def delta(run_id: str, events: Iterable[Event], cursor: int, *, ended: bool) -> Delta:
    """Return the spans and tokens among events of a run.

    Args:
        run_id: Its id.
        events: Events since the last delta.
        cursor: The cursor after them.
        ended: Whether none will follow.
    """
    rows = list(events)
    spans = [e for e in rows if isinstance(e, Span)]
    return {
        "run": run_id,
        "cursor": cursor,
        "ended": ended,
        "spans": {
            "id": [s.id for s in spans],
            "device": [s.device for s in spans],
            "kind": [s.kind for s in spans],
            "start": [_ms(s.start) for s in spans],
            "end": [_ms(s.end) for s in spans],
            "step": [s.step for s in spans],
            "rows": [s.rows for s in spans],
            "context": [s.context for s in spans],
            "outcome": [s.outcome for s in spans],
        },
        "tokens": [_token(e) for e in rows if isinstance(e, Commit)],
    }


def _token(commit: Commit) -> NewToken:
    return {
        "sequence": commit.sequence,
        "position": commit.position,
        "id": commit.token,
        "text": commit.text,
        "outcome": commit.origin,
        "step": commit.step,
        "t": _ms(commit.time),
    }


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)
