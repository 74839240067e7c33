"""Acceptance by place in the draft: of its tokens, and of its levels. Pure functions.

A tree has several tokens at one place, of which at most one is accepted. So a level's rate counts
rounds, not tokens: Sequoia (arXiv:2402.12374) and EAGLE (its n-alpha) use such rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from specscope.traces.facts.joined import NO_NODE, JoinedRound, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specscope.engine.trace.events import Decision
    from specscope.engine.trace.trace import Trace

FATES = frozenset({"accepted", "rejected", "discarded"})
"""Outcomes of draft tokens; the other outcomes are of the target's own tokens."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Acceptance at one place of the draft; place 1 is right after the committed prefix."""

    slot: int
    drafted: int | None
    tested: int
    accepted: int | None
    conditional: float | None
    """accepted / tested: the rate if all tokens before it were accepted."""
    unconditional: float


@dataclass(frozen=True, slots=True)
class LevelRate:
    """Acceptance at one level of the draft; level 1 is right after the committed prefix."""

    level: int
    reached: int
    """Rounds that decided the level: their draft has it, and all levels above were accepted."""
    accepted: int
    rate: float


def per_position(trace: Trace) -> tuple[Slot, ...]:
    counts: dict[int, list[int]] = {}
    for one in joined(trace).values():
        for place, d in one.placed:
            if d.outcome not in FATES:
                continue
            count = counts.setdefault(place, [0, 0, 0])
            count[0] += 1
            count[1] += d.outcome != "discarded"
            count[2] += d.outcome == "accepted"
    return tuple(
        Slot(slot, drafted, tested, accepted, accepted / tested if tested else None, accepted / drafted)
        for slot, (drafted, tested, accepted) in sorted(counts.items())
    )


def per_level(*traces: Trace) -> tuple[LevelRate, ...]:
    """Return the acceptance of each level that a round reached."""
    rounds = (one for trace in traces for one in joined(trace).values())
    return _rated(test for one in rounds for test in decided_levels(one))


def _rated(tests: Iterable[tuple[int, bool]]) -> tuple[LevelRate, ...]:
    """Return the rates of (level, whether it was accepted)."""
    counts: dict[int, list[bool]] = {}
    for level, accepted in tests:
        counts.setdefault(level, []).append(accepted)
    found = ((level, len(tests), sum(tests)) for level, tests in sorted(counts.items()))
    return tuple(LevelRate(level, n, kept, kept / n) for level, n, kept in found)


def decided_levels(one: JoinedRound) -> list[tuple[int, bool]]:
    """Return the levels that a round decided, and whether one of their tokens was accepted.

    A level below an accepted leaf is decided, too: the target's own token is at its place.
    """
    judged = one.placed
    drafted = {place for place, d in judged if d.outcome in FATES}
    accepted = {place for place, d in judged if d.outcome == "accepted"}
    decided = drafted & {place for place, d in judged if d.outcome != "discarded"}
    return [(level, level in accepted) for level in sorted(decided)]


def drafted_levels(trace: Trace) -> tuple[int, int]:
    """Return how many levels of all drafts had an accepted token, and how many were drafted."""
    kept, all_levels = 0, 0
    for one in joined(trace).values():
        all_levels += len({place for place, d in one.placed if d.outcome in FATES})
        kept += len({place for place, d in one.placed if d.outcome == "accepted"})
    return kept, all_levels


def level_rate(levels: Sequence[LevelRate]) -> float | None:
    """Return the share of decided levels with an accepted token; of chains accepted / tested.

    Siblings of a tree count once: those that lost beside an accepted one are no rejections.
    """
    reached = sum(level.reached for level in levels)
    return sum(level.accepted for level in levels) / reached if reached else None


def first_rate(trace: Trace) -> float | None:
    """Return how often the first of the tokens that continue an accepted path was accepted.

    Of chains it is accepted / tested. Of trees it is what chains of the same drafter would have:
    siblings that lost beside an accepted one are no rejections, and ones that won are no chain's.
    """
    return level_rate(first_levels(trace))


def first_levels(trace: Trace) -> tuple[LevelRate, ...]:
    """Return how often these first tokens were accepted at each place."""
    tests = list[tuple[int, bool]]()
    for one in joined(trace).values():
        before, nodes = one.start - 1, one.nodes.values()
        path = {NO_NODE, *(d.node for d in nodes if d.outcome == "accepted")}
        first = {d.parent: d for d in reversed(nodes) if d.parent in path}
        tested = (d for d in first.values() if d.outcome != "discarded")
        tests += ((d.position - before, d.outcome == "accepted") for d in tested)
    return _rated(tests)


def reached(histogram: Sequence[int], gamma: int) -> list[int]:
    """Return how many drafts had at least 0, 1, ..., gamma accepted tokens."""
    padded = [*histogram, *[0] * (gamma + 1 - len(histogram))]
    return list(accumulate(reversed(padded)))[::-1][: gamma + 1]


def slots_of(histogram: Sequence[int], gamma: int) -> tuple[Slot, ...]:
    drafts, *_ = found = reached(histogram, gamma)
    return tuple(
        Slot(slot, drafts, tested, accepted, accepted / tested if tested else None, accepted / drafts)
        for slot, (tested, accepted) in enumerate(pairwise(found), 1)
        if drafts
    )


def levels_of(histogram: Sequence[int], gamma: int) -> tuple[LevelRate, ...]:
    return tuple(
        LevelRate(s.slot, s.tested, s.accepted or 0, s.conditional)
        for s in slots_of(histogram, gamma)
        if s.conditional is not None
    )


def has_trees(decisions: Iterable[Decision]) -> bool:
    return any(d.node != NO_NODE and d.parent != d.node - 1 for d in decisions)
