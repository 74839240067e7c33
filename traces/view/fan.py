"""The speculation cache (SSD): the branches of each round, its outcome, and hits by place."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.forks import lookups
from specscope.traces.facts.joined import JoinedRound, joined
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import columns_of, section
from specscope.traces.view.tokens import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from specscope.engine.trace.events import Round
    from specscope.engine.trace.trace import Trace


class GuessColumns(TypedDict):
    """The guesses of a round, by place and falling probability; texts are in the run's `pieces`."""

    place: list[int]
    token: list[int]
    q: list[float | None]
    length: list[int]
    taken: list[bool]


class FanView(TypedDict):
    """A round with branches, and the outcome of its verification."""

    sequence: int
    step: int
    t: float
    trunk: list[int]
    """Ids of the verified draft."""
    accepted: int
    """Its accepted tokens: the place of the outcome."""
    own: int | None
    """The target's own token; null if the text ended before it."""
    result: str
    """hit, miss, or end: the text ended, and nothing was looked up."""
    guesses: GuessColumns
    saved: float
    """Of a hit: milliseconds for which its tokens were drafted before the verdict."""
    emitted: int
    """Tokens of the next round; 0 for `end`."""


class PlaceView(TypedDict):
    """The lookups of outcomes with this number of accepted tokens."""

    place: int
    lookups: int
    hits: int


def _ids(rows: Iterable[FanView]) -> Iterator[int]:
    for fan in rows:
        yield from (*fan["trunk"], *fan["guesses"]["token"], *(() if fan["own"] is None else (fan["own"],)))


@section("fans", "speculation cache", tokens=_ids)
def fans(trace: Trace) -> list[FanView]:
    """Return the rounds with branches."""
    clock = decoding_clock(trace)
    found = [(r, joined(trace).of(r)) for r in trace.rounds]
    return [_fan(r, clock(r.time), one) for r, one in found if one.forks]


def _fan(r: Round, t: float, one: JoinedRound) -> FanView:
    taken, following, own = one.taken, one.following, one.own
    early = [max(0, min(s.end, r.time) - s.start) for s in one.branches[: taken.length if taken else 0]]
    return {
        "sequence": r.sequence,
        "step": r.step,
        "t": t,
        "trunk": [d.token for d in one.nodes.values()],
        "accepted": r.accepted,
        "own": own.token if own and r.emitted > r.accepted else None,
        "result": "hit" if taken else "miss" if following else "end",
        "guesses": columns_of(GuessColumns, one.forks, q=[short(fork.q) for fork in one.forks]),
        "saved": round(sum(early) / 1e6, 3),
        "emitted": following.emitted if following else 0,
    }


@section("hits", "hits by place", need="sums")
def hits(trace: Trace) -> list[PlaceView]:
    counts: dict[int, list[bool]] = {}
    for one in lookups(trace):
        counts.setdefault(one.round.accepted, []).append(one.taken is not None)
    return [{"place": p, "lookups": len(c), "hits": sum(c)} for p, c in sorted(counts.items())]
