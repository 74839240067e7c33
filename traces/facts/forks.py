"""Lookups in the speculation cache of SSD: which outcomes of verifications had a branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from specscope.engine.trace.events import Forked, Round

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace


class Lookup(NamedTuple):
    """A round whose outcome was looked up among the branches drafted beside it."""

    round: Round
    branches: tuple[Forked, ...]
    following: Round
    """The sequence's next round: of a hit it verified the branch."""

    @property
    def taken(self) -> Forked | None:
        return next((branch for branch in self.branches if branch.taken), None)


def lookups(trace: Trace) -> list[Lookup]:
    """Return the lookups in order; the last round of a sequence has none, as nothing follows it."""
    branches = dict[tuple[int, int], list[Forked]]()
    for fork in trace.forks:
        branches.setdefault((fork.sequence, fork.step), []).append(fork)
    last, found = dict[int, Round](), list[Lookup]()
    for following in trace.rounds:
        before = last.get(following.sequence)
        last[following.sequence] = following
        if before and (own := branches.get((before.sequence, before.step))):
            found.append(Lookup(before, tuple(own), following))
    return found


def untaken(trace: Trace) -> int:
    """Return the number of tokens of branches that were not taken; no verification saw them."""
    return sum(fork.length for fork in trace.forks if not fork.taken)
