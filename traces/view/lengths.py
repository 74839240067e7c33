"""Draft length over time: what each draft was asked for, what it got, what was accepted of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.joined import joined, spans_by_id
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import row_of, section

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specscope.engine.trace.events import Chain, Decision, Stop
    from specscope.engine.trace.trace import Trace


class LengthView(TypedDict):
    """The fields of `events.Chain`, and the fate of its tokens; the others are not decided yet."""

    step: int
    sequence: int
    position: int
    asked: int
    drafted: int
    stop: Stop
    t: float
    """When it was drafted, or the end of its round if nothing was."""
    first: int
    """The span of its first forward; -1 for none."""
    last: int
    accepted: int
    lost: int
    """Rejected or discarded."""


@section("lengths", "draft lengths")
def lengths(trace: Trace) -> list[LengthView]:
    """Return the drafts of all sequences in order, without those whose time is not known yet."""
    clock, rounds, spans = decoding_clock(trace), joined(trace), spans_by_id(trace)
    found: list[LengthView] = []
    for chain, tokens in _with_tokens(trace):
        last = max((d.draft_span for d in tokens), default=chain.span)
        span, judged = spans.get(last), rounds.of(chain).round
        time = span.end if span else judged.time if judged else None
        if time is not None:
            accepted = sum(d.outcome == "accepted" for d in tokens)
            facts = {"first": chain.span, "last": last, "accepted": accepted, "lost": len(tokens) - accepted}
            found.append(row_of(LengthView, chain, t=clock(time), **facts))
    return found


def _with_tokens(trace: Trace) -> Iterable[tuple[Chain, list[Decision]]]:
    """Return each draft with the decisions about its tokens: those of its spans.

    Spans are numbered in order of submission, so a draft has those from its first one up to the
    first one of the sequence's next draft.
    """
    drafts = defaultdict[int, "list[tuple[Chain, list[Decision]]]"](list)
    every = [(chain, list["Decision"]()) for chain in trace.chains]
    for chain, tokens in every:
        if chain.span >= 0:
            drafts[chain.sequence].append((chain, tokens))
    starts = {sequence: [chain.span for chain, _ in own] for sequence, own in drafts.items()}
    for d in trace.decisions:
        at = bisect_right(starts.get(d.sequence, ()), d.draft_span) - 1
        if at >= 0 and d.draft_span >= 0:
            chain, tokens = drafts[d.sequence][at]
            if 0 <= d.position - chain.position < chain.drafted:
                tokens.append(d)
    return every
