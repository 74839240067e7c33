"""A pool of target servers: what each forward scored, what became of it, and how many worked at once.

A forward over a prefix of L tokens and N drafted ones scores the positions L to L + N. Its span tells where they end,
`context + rows`; where they begin follows from the round it was asked for in. Rows before that are tokens which this
server had not seen: it catches up on them and scores nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from traces import waiting
from traces.tokens import decoding_clock, span_fates

if TYPE_CHECKING:
    from engine.trace.events import Device, Span
    from engine.trace.trace import Trace

_SCORING = frozenset({"verify", "pre-verify"})


def pool(trace: Trace) -> dict[str, Any] | None:
    """Return the pool of a run on one sequence: its servers, their forwards and the drafts, times in ms of decoding.

    None where there is nothing to see: a single server, and no work was preempted. The columns of `forwards`:
    span `id`; `server`, an index; `start`, `end`; `first` to `last`, the positions scored (0 is the first of the output);
    `own`, the first of them that no forward before it in the same turn scores; `outcome`, see `_outcomes`; `emitted`,
    the tokens that it brought. `drafts` holds [ms, position, fate] of every drafted token.
    """
    forwards = _forwards(trace)
    servers = [d for d in trace.header.devices if any(s.device == d.name for s in forwards)]
    if len(trace.header.prompts) != 1 or not forwards or (len(servers) < 2 and not preempted(trace)):
        return None
    return {
        "servers": [{"device": d.name, "label": d.label} for d in servers],
        "forwards": _columns(trace, forwards, servers),
        "drafts": _drafts(trace),
    }


def preempted(trace: Trace) -> list[Span]:
    """Return the work that was called off because a draft was wrong or the text ended.

    What was stopped together with a run that a person stopped, or that failed, was not preempted.
    """
    turn = max((c.step for c in trace.commits if c.origin != "accepted"), default=0)
    cancelled = (s for s in trace.spans if s.outcome == "cancelled")
    return [s for s in cancelled if trace.status == "done" or s.step <= turn]


def sp_degree(trace: Trace) -> int:
    """Return the most target servers that worked at the same time while decoding; prefill does not count."""
    scoring = (s for s in trace.spans if waiting.side(s) == "target" and s.kind in _SCORING)
    decoding = [s for s in scoring if s.rank == 0]
    edges = [
        (time, change) for s in decoding if s.end > s.start for time, change in ((s.start, 1), (s.end, -1))
    ]
    most = now = 0
    for _, change in sorted(edges):  # who leaves at a moment leaves before the next one comes
        now += change
        most = max(most, now)
    return most


def _forwards(trace: Trace) -> list[Span]:
    """Return the target's forwards in the order asked for; one that several devices share counts on its first."""
    scoring = (s for s in trace.spans if s.kind in _SCORING and waiting.side(s) == "target" and s.rank == 0)
    return sorted(scoring, key=lambda s: s.id)


def _columns(trace: Trace, forwards: list[Span], servers: list[Device]) -> dict[str, list[Any]]:
    clock, names, prompt = decoding_clock(trace), [d.name for d in servers], len(trace.header.prompt_ids[0])
    emitted = {r.span: 0 for r in trace.rounds}
    for r in trace.rounds:
        emitted[r.span] += r.emitted
    first, own, last = _positions(trace, forwards, prompt)
    return {
        "id": [s.id for s in forwards],
        "server": [names.index(s.device) for s in forwards],
        "start": [clock(s.start) for s in forwards],
        "end": [clock(s.end) for s in forwards],
        "first": first,
        "own": own,
        "last": last,
        "outcome": _outcomes(trace, forwards),
        "emitted": [emitted.get(s.id, 0) for s in forwards],
    }


def _positions(trace: Trace, forwards: list[Span], prompt: int) -> tuple[list[int], list[int], list[int]]:
    """Return the first position scored, the first that no forward before scores, and the last one, for each."""
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
    """Return what became of each forward.

    `decided`: its scores decided tokens, all drafts among them stood; `rejected`: they found a wrong draft; `preempted`,
    `stopped` with the run; `unused`: nobody needed its scores; `open`: not judged yet.
    """
    off = {s.id for s in preempted(trace)}
    wrong = {d.verify_span for d in trace.decisions if d.outcome == "rejected"}
    judged = {r.span for r in trace.rounds}

    def outcome(span: Span) -> str:
        if span.outcome == "cancelled":
            return "preempted" if span.id in off else "stopped"
        if span.id in judged:
            return "rejected" if span.id in wrong else "decided"
        return "open" if trace.status == "running" else "unused"

    return [outcome(span) for span in forwards]


def _drafts(trace: Trace) -> list[list[Any]]:
    clock, prompt, fates = decoding_clock(trace), len(trace.header.prompt_ids[0]), span_fates(trace)
    drafted = {s.id: s for s in trace.spans if s.kind == "draft" and s.outcome == "done"}
    rows = [
        [clock(drafted[d.draft_span].end), d.position - prompt, d.outcome]
        for d in trace.decisions
        if d.draft_span in drafted
    ]
    told = {d.draft_span for d in trace.decisions}
    rows += [
        [clock(s.end), s.context + s.rows - prompt, fates[s.id]] for s in drafted.values() if s.id not in told
    ]
    return sorted(rows)
