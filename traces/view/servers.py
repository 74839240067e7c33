"""A pool of target servers (DSI): the positions that each forward scored, and what became of it.

A forward over a prefix of L tokens and N drafted ones scores the positions L to L + N. The last of
them is its span's `context + rows`; the first follows from the round it was asked for in. Rows
before the first are tokens that the server had not seen yet: it catches up on them and scores
nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, TypedDict

from specscope.traces.facts.fates import preempted, scoring
from specscope.traces.facts.waiting import decoding_clock
from specscope.traces.view import section
from specscope.traces.view.tracks import span_fates

if TYPE_CHECKING:
    from specscope.engine.trace.events import Device, Span
    from specscope.engine.trace.trace import Trace


class ServerView(TypedDict):
    """A target server."""

    device: str
    label: str


class ForwardColumns(TypedDict):
    """The target's forwards in the order asked for. Position 0 is the output's first token."""

    id: list[int]
    server: list[int]
    start: list[float]
    end: list[float]
    first: list[int]
    own: list[int]
    """First position that no earlier forward of the same turn scores."""
    last: list[int]
    outcome: list[str]
    """`decided`: its scores decided tokens and rejected none; `rejected`: they rejected a draft;
    `preempted`; `stopped` with the run; `unused`: nothing needed its scores; `open`: not judged."""
    emitted: list[int]


class ServersView(TypedDict):
    """The pool of target servers of a run."""

    servers: list[ServerView]
    forwards: ForwardColumns
    drafts: list[tuple[float, int, str]]
    """(ms, position, fate) of every drafted token."""


@section("pool", "target servers", one=True, need="all")
def server_pool(trace: Trace) -> ServersView | None:
    """Return the pool of a run on one sequence; None for a single server that preempted nothing."""
    forwards = sorted(scoring(trace), key=lambda s: s.id)
    used = {s.device for s in forwards}
    servers = [d for d in trace.header.devices if d.name in used]
    if len(trace.header.prompts) != 1 or not forwards or (len(servers) < 2 and not preempted(trace)):
        return None
    return {
        "servers": [{"device": d.name, "label": d.label} for d in servers],
        "forwards": _columns(trace, forwards, servers),
        "drafts": _drafts(trace),
    }


def _columns(trace: Trace, forwards: list[Span], servers: list[Device]) -> ForwardColumns:
    clock, prompt = decoding_clock(trace), len(trace.header.prompt_ids[0])
    places = {d.name: i for i, d in enumerate(servers)}
    emitted = {r.span: 0 for r in trace.rounds}
    for r in trace.rounds:
        emitted[r.span] += r.emitted
    first, own, last = _positions(trace, forwards, prompt)
    return {
        "id": [s.id for s in forwards],
        "server": [places[s.device] for s in forwards],
        "start": [clock(s.start) for s in forwards],
        "end": [clock(s.end) for s in forwards],
        "first": first,
        "own": own,
        "last": last,
        "outcome": _outcomes(trace, forwards),
        "emitted": [emitted.get(s.id, 0) for s in forwards],
    }


def _positions(trace: Trace, forwards: list[Span], prompt: int) -> tuple[list[int], list[int], list[int]]:
    """Return the columns `first`, `own` and `last`."""
    commits = [c.step for c in trace.commits]
    turns = sorted(c.step for c in trace.commits if c.origin != "accepted")
    reached: dict[int, int] = {}
    first, own, last = list[int](), list[int](), list[int]()
    for span in forwards:
        end, turn = span.context + span.rows - prompt, bisect_left(turns, span.step)
        begin = min(end, max(span.context + 1 - prompt, bisect_left(commits, span.step)))
        first.append(begin)
        own.append(min(end, max(begin, reached.get(turn, begin))))
        last.append(end)
        reached[turn] = max(end + 1, reached.get(turn, 0))
    return first, own, last


def _outcomes(trace: Trace, forwards: list[Span]) -> list[str]:
    preempted_ids = {s.id for s in preempted(trace)}
    rejecting = {d.verify_span for d in trace.decisions if d.outcome == "rejected"}
    judged = {r.span for r in trace.rounds}

    def outcome(span: Span) -> str:
        if span.outcome == "cancelled":
            return "preempted" if span.id in preempted_ids else "stopped"
        if span.id in judged:
            return "rejected" if span.id in rejecting else "decided"
        return "open" if trace.status == "running" else "unused"

    return [outcome(span) for span in forwards]


def _drafts(trace: Trace) -> list[tuple[float, int, str]]:
    clock, prompt, fates = decoding_clock(trace), len(trace.header.prompt_ids[0]), span_fates(trace)
    drafted = {s.id: s for s in trace.spans if s.kind == "draft" and s.outcome == "done"}
    rows = [
        (clock(drafted[d.draft_span].end), d.position - prompt, d.outcome)
        for d in trace.decisions
        if d.draft_span in drafted
    ]
    decided = {d.draft_span for d in trace.decisions}
    rows += [
        (clock(s.end), s.context + s.rows - prompt, fates[s.id])
        for s in drafted.values()
        if s.id not in decided
    ]
    return sorted(rows)
