"""The rows of a trace by the round that they belong to; views and figures are projections of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from specscope.engine.trace.events import LISTS

if TYPE_CHECKING:
    from specscope.engine.trace.events import Copied, Decision, Forked, Pooled, Round, Span
    from specscope.engine.trace.trace import Trace

Found = TypeVar("Found")
NO_NODE = -1
"""`node` of a decision about the target's own token, or about a draft that was never judged."""
LOST = frozenset({"rejected", "discarded"})
"""Outcomes of draft tokens that did not become part of the output."""


def once(find: Callable[[Trace], Found]) -> Callable[[Trace], Found]:
    """Return a function that calls `find` again only after a trace has new lists, or longer ones.

    Rows are never replaced within a list. Nobody changes a result.
    """

    @wraps(find)
    def kept(trace: Trace) -> Found:
        lists = [getattr(trace, name) for name in LISTS.values()]
        rows = trace.header, trace.footer, lists, [*map(len, lists)]
        known: tuple[Any, dict[str, Found]] = vars(trace).get("_kept", (None, {}))
        if known[0] != rows:
            known = vars(trace)["_kept"] = rows, {}
        name = f"{find.__module__}.{find.__name__}"  # a trace that is pickled takes it along
        if name not in known[1]:
            known[1][name] = find(trace)
        return known[1][name]

    return kept


@dataclass
class JoinedRound:
    """The rows of one step of a sequence."""

    round: Round | None = None
    """None until the step is verified."""
    following: Round | None = None
    """The sequence's next round."""
    decisions: list[Decision] = field(default_factory=list["Decision"])
    forks: list[Forked] = field(default_factory=list["Forked"])
    branches: list[Span] = field(default_factory=list["Span"])
    """The forwards that drafted its forks."""
    copied: Copied | None = None
    pooled: Pooled | None = None

    @cached_property
    def nodes(self) -> dict[int, Decision]:
        """The nodes of the judged draft by index, in this order."""
        return {d.node: d for d in sorted(self.decisions, key=lambda d: d.node) if d.node != NO_NODE}

    @property
    def own(self) -> Decision | None:
        """The decision about the target's own token."""
        return next((d for d in self.decisions if d.node == NO_NODE and d.outcome != "discarded"), None)

    @property
    def start(self) -> int:
        """The position of its first token."""
        return min((d.position for d in self.decisions), default=0)

    @property
    def placed(self) -> list[tuple[int, Decision]]:
        """(place, decision) of its tokens, the target's own included; place 1 is the first."""
        before = self.start - 1
        return [(d.position - before, d) for d in self.decisions]

    @property
    def taken(self) -> Forked | None:
        return next((fork for fork in self.forks if fork.taken), None)


class JoinedRounds(dict[tuple[int, int], JoinedRound]):
    """The rounds of a trace by (sequence, step); first those with decisions, in their order."""

    def of(self, row: Any) -> JoinedRound:
        """Return the round of a row with a sequence and a step; an empty one if there is none."""
        return self.get((row.sequence, row.step)) or JoinedRound()


@once
def joined(trace: Trace) -> JoinedRounds:
    rounds, last = defaultdict[tuple[int, int], JoinedRound](JoinedRound), dict[int, JoinedRound]()
    for d in trace.decisions:
        rounds[d.sequence, d.step].decisions.append(d)
    for r in trace.rounds:
        one = rounds[r.sequence, r.step]
        one.round = r
        if r.sequence in last:
            last[r.sequence].following = r
        last[r.sequence] = one
    for span in trace.spans:
        if span.kind == "branch" and span.rank == 0:
            rounds[span.sequence, span.step].branches.append(span)
    for fork in trace.forks:
        rounds[fork.sequence, fork.step].forks.append(fork)
    for copied in trace.copies:
        rounds[copied.sequence, copied.step].copied = copied
    for pooled in trace.pooled:
        rounds[pooled.sequence, pooled.step].pooled = pooled
    return JoinedRounds(rounds)


@once
def spans_by_id(trace: Trace) -> dict[int, Span]:
    return {span.id: span for span in trace.spans}


@once
def decisions_of_output(trace: Trace) -> dict[tuple[int, int], Decision]:
    """Return the decision about each token of the output, by (sequence, position)."""
    return {(d.sequence, d.position): d for d in trace.decisions if d.outcome not in LOST}
