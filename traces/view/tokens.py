"""The tokens of the output, and why each of them was kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from traces.imported import NO_TOKEN, UNKNOWN_TEXT, origin
from traces.view.branches import NO_NODE
from traces.view.clock import decoding_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.trace.events import Commit, Decision, Top
    from engine.trace.trace import Trace

TOP = 5
"""Most probable tokens shown of a distribution."""


class DecisionView(TypedDict, total=False):
    """The decision about a token. Without a recorded decision, none of these fields exists."""

    node: int
    """Index in the judged draft; -1 for the target's own token, and for a draft never judged."""
    p: float | None
    """The target's probability of the token."""
    q: float | None
    """The drafter's probability of the token."""
    u: float | None
    """The uniform draw of the test."""
    chance: float | None
    """The probability that the rule accepts the token; null if nothing is drawn."""
    rule: str
    draft: int
    """Id of the span that drafted it; -1 for none."""
    verify: int
    """Id of the span that decided it; -1 for none."""
    top_p: list[tuple[int, float | None]]
    """The target's most probable tokens: (id, probability)."""
    top_q: list[tuple[int, float | None]]
    """The drafter's most probable tokens."""


class TokenView(DecisionView):
    """A committed token."""

    index: int
    """Number of the commit in the run."""
    sequence: int
    position: int
    """Position in the sequence; 0 is the prompt's first token."""
    id: int
    text: str
    outcome: str
    """`accepted`, `corrected`, `bonus` or `plain`."""
    step: int
    t: float
    gap: float
    """Time since the sequence's commit before it; tokens committed together have the same gap."""


def committed(trace: Trace) -> Iterator[TokenView]:
    """Yield the tokens of the output, each with the decision that kept it."""
    clock = decoding_clock(trace)
    lost = ("rejected", "discarded")
    decisions = {(d.sequence, d.position): d for d in trace.decisions if d.outcome not in lost}
    last: dict[int, tuple[float, float]] = {}
    for index, commit in enumerate(trace.commits):
        now = clock(commit.time)
        before, latest = last.get(commit.sequence, (0.0, 0.0))
        if now != latest:
            before, latest = latest, now
        last[commit.sequence] = before, latest
        decision = decisions.get((commit.sequence, commit.position))
        yield _token(trace, commit, decision, index, now, round(now - before, 3))


def _token(
    trace: Trace, commit: Commit, decision: Decision | None, index: int, now: float, gap: float
) -> TokenView:
    token: TokenView = {
        "index": index,
        "sequence": commit.sequence,
        "position": commit.position,
        "id": commit.token,
        "text": _shown(trace, commit),
        "outcome": commit.origin,
        "step": commit.step,
        "t": now,
        "gap": gap,
    }
    return {**token, **decided(trace, decision)} if decision else token


def _shown(trace: Trace, commit: Commit) -> str:
    """Return the text of a token; of another engine's token without one, its id or a block."""
    if commit.text or origin(trace.header) is None:
        return commit.text
    return f"{UNKNOWN_TEXT if commit.token == NO_TOKEN else commit.token} "


def decided(trace: Trace, d: Decision) -> DecisionView:
    """Return how a token was decided."""
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
    if d.node == NO_NODE or d.p is None:
        return None
    if d.rule == "match":
        return short(d.p)
    return short(min(1.0, d.p / d.q)) if d.rule == "ratio" and d.q else None


def short(value: float | None) -> float | None:
    """Round a probability to four significant digits; None for null, infinity and not-a-number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _top(top: Top) -> list[tuple[int, float | None]]:
    return [(token, short(p)) for token, p in top[:TOP]]
