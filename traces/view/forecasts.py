"""Forecasts: what drafts from suffix trees were expected to bring, against what they brought."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.joined import joined
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import row_of, section

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace


class ForecastView(TypedDict):
    """A round with suffix trees."""

    sequence: int
    step: int
    t: float
    tree: str
    """The tree of the best draft: `own`, `finished`, or empty without a match."""
    match: int
    occurrences: int
    score: float
    drafter: float | None
    copied: bool
    """Whether the round judged the draft of the tree; otherwise a drafter's, or none."""
    drafted: int
    accepted: int


class ForecastSum(TypedDict):
    """The rounds that judged drafts of one kind."""

    by: str
    """`own` or `finished` for the tree; `drafter`."""
    rounds: int
    match: float
    """Mean length of the match; 0 for the drafter."""
    drafted: int
    expected: float
    """Tokens that were expected to be accepted."""
    accepted: int


@section("forecasts", "suffix trees")
def forecasts(trace: Trace) -> list[ForecastView]:
    clock, rounds, found = decoding_clock(trace), joined(trace), list[ForecastView]()
    for f in trace.forecasts:
        if r := rounds.of(f).round:
            judged = {"copied": rounds.of(f).copied is not None, "drafted": r.drafted, "accepted": r.accepted}
            found.append(row_of(ForecastView, f, t=clock(r.time), **judged))
    return found


@section("forecast_sums", "sums of suffix trees", need="sums")
def forecast_sums(trace: Trace) -> list[ForecastSum]:
    return sums_of(forecasts(trace))


def sums_of(rows: list[ForecastView]) -> list[ForecastSum]:
    groups: dict[str, list[ForecastView]] = {"own": [], "finished": [], "drafter": []}
    for row in rows:
        if row["drafted"]:
            groups[row["tree"] if row["copied"] and row["tree"] else "drafter"].append(row)
    return [
        {
            "by": by,
            "rounds": len(group),
            "match": 0.0 if by == "drafter" else sum(row["match"] for row in group) / len(group),
            "drafted": sum(row["drafted"] for row in group),
            "expected": sum((row["drafter"] or 0.0) if by == "drafter" else row["score"] for row in group),
            "accepted": sum(row["accepted"] for row in group),
        }
        for by, group in groups.items()
        if group
    ]
