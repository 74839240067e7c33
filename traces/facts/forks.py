"""Lookups in the speculation cache of SSD: which outcomes of verifications had a branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from specscope.engine.trace.events import Forked, Round
from specscope.traces.facts.joined import joined

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace


class Lookup(NamedTuple):
    """A round whose outcome was looked up among the branches drafted beside it."""

    round: Round
    taken: Forked | None
    following: Round
    """The sequence's next round: of a hit it verified the branch."""


def lookups(trace: Trace) -> list[Lookup]:
    """Return the lookups in order; the last round of a sequence has none, as nothing follows it."""
    found = [(r, joined(trace).of(r)) for r in trace.rounds]
    return [Lookup(r, one.taken, one.following) for r, one in found if one.forks and one.following]


def untaken(trace: Trace) -> int:
    """Return the number of tokens of branches that were not taken; no verification saw them."""
    return sum(fork.length for fork in trace.forks if not fork.taken)
