"""What became of every token of a run: committed ones, and the drafts that did not make it.

Pure functions over a `Trace`; they serve the viewer's model and the replay, and work on a run that is still going on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from traces.branches import OWN, by_branch
from traces.waiting import decode_window

if TYPE_CHECKING:
    from engine.trace.events import Commit, Decision, Device, Span, Top
    from engine.trace.trace import Trace

Clock = Callable[[int], float]


def decoding_clock(trace: Trace) -> Clock:
    """Return the function from a row's time (ns since the run's start) to ms since decoding began, whole microseconds."""
    start = decode_window(trace)[0]
    return lambda ns: round((ns - start) / 1e6, 3)


def working_devices(trace: Trace) -> list[Device]:
    """Return the devices worth a track: the target's always, others once they did more than prefill."""
    active = {s.device for s in trace.spans if s.kind != "prefill"}
    return [d for d in trace.header.devices if "target" in d.role or d.name in active]


def span_fates(trace: Trace) -> dict[int, str]:
    """Return by span id what became of its work.

    `kept`: a token of it was committed; `rejected`, `discarded`: it drafted in vain; `cancelled`: the forward was
    called off; `open`: drafted and not decided yet. Work that drafts nothing is `kept`.
    """
    order = {"accepted": 3, "rejected": 2, "discarded": 1}
    best: dict[int, str] = {}
    for d in trace.decisions:
        if d.draft_span >= 0 and order.get(d.outcome, 0) > order.get(best.get(d.draft_span, ""), 0):
            best[d.draft_span] = d.outcome
    undecided = "open" if trace.status == "running" else "discarded"

    def fate(span: Span) -> str:
        if span.outcome == "cancelled":
            return "cancelled"
        if span.kind != "draft":
            return "kept"
        outcome = best.get(span.id - span.rank, undecided)
        return "kept" if outcome == "accepted" else outcome

    return {span.id: fate(span) for span in trace.spans}


def committed(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the output's tokens, each with the decision that let it in."""
    clock = decoding_clock(trace)
    reasons = {
        (d.sequence, d.position): d for d in trace.decisions if d.outcome not in ("rejected", "discarded")
    }
    last: dict[int, tuple[float, float]] = {}
    for index, commit in enumerate(trace.commits):
        now = clock(commit.time)
        before, latest = last.get(commit.sequence, (0.0, 0.0))
        if now != latest:
            before, latest = latest, now
        last[commit.sequence] = before, latest
        reason = reasons.get((commit.sequence, commit.position))
        yield _token(trace, commit, reason, index, now, round(now - before, 3))


def _token(
    trace: Trace, commit: Commit, reason: Decision | None, index: int, now: float, gap: float
) -> dict[str, Any]:
    row = {
        "index": index,
        "sequence": commit.sequence,
        "position": commit.position,
        "id": commit.token,
        "text": commit.text,
        "outcome": commit.origin,
        "step": commit.step,
        "t": now,
        "gap": gap,
    }
    return row | (_why(trace, reason) if reason else {})


def ghosts(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the drafted tokens that were rejected or discarded.

    `before` is the position in front of which a ghost stood: where its branch left the text. A draft that never came
    to a test (node -1) left it with the step's first rejection. The branches of a tree come one after the other; `branch`
    marks the first token of one that follows another in the same place. While the run goes on, drafts of a round that
    is not complete yet are not told.
    """
    clock = decoding_clock(trace)
    times = {(r.sequence, r.step): r.time for r in trace.rounds}
    ends = {s.id: s.end for s in trace.spans}
    nodes = {(d.sequence, d.step, d.node): d for d in trace.decisions if d.node != OWN}
    forks: dict[tuple[int, int], int] = {}
    for d in trace.decisions:
        if d.outcome == "rejected":
            forks.setdefault((d.sequence, d.step), d.position)
    last = dict[tuple[int, int, int], int]()
    for d in by_branch(trace.decisions):
        undecided = trace.footer is None and (d.sequence, d.step) not in times
        if d.outcome in ("rejected", "discarded") and not undecided:
            fork = forks.get((d.sequence, d.step), d.position)
            before = min(fork, d.position) if d.node == OWN else _left(d, nodes)
            row = {
                "sequence": d.sequence,
                "position": d.position,
                "before": before,
                "id": d.token,
                "text": trace.pieces.get(d.token, ""),
                "outcome": d.outcome,
                "step": d.step,
                "t": clock(times.get((d.sequence, d.step), ends.get(d.draft_span, 0))),
            }
            place = (d.sequence, d.step, before)
            other = d.node != OWN and last.get(place, d.parent) != d.parent
            last[place] = d.node
            yield row | {"branch": other} | _why(trace, d)


def _left(decision: Decision, nodes: dict[tuple[int, int, int], Decision]) -> int:
    """Return the position of the first token on the decision's branch that was not accepted."""
    while parent := nodes.get((decision.sequence, decision.step, decision.parent)):
        if parent.outcome == "accepted" or parent.position >= decision.position:
            break
        decision = parent
    return decision.position


def _why(trace: Trace, d: Decision) -> dict[str, Any]:
    greedy = trace.header.sampling.get("temperature", 0) == 0
    return {
        "node": d.node,
        "p": short(d.p),
        "q": short(d.q),
        "u": short(d.u),
        "chance": None if greedy else _chance(d),
        "rule": d.rule,
        "draft": d.draft_span,
        "verify": d.verify_span,
        "top_p": _top(d.top_p),
        "top_q": _top(d.top_q),
    }


def _chance(d: Decision) -> float | None:
    """Return the probability with which the rule accepts the drafted token; None where it leaves nothing to chance."""
    if d.node == OWN or d.p is None:
        return None
    if d.rule == "match":
        return short(d.p)
    return short(min(1.0, d.p / d.q)) if d.rule == "ratio" and d.q else None


def short(value: float | None) -> float | None:
    """Return a probability in four digits; None for one that is not known."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _top(top: Top) -> list[list[float | None]]:
    return [[token, short(p)] for token, p in top[:5]]
