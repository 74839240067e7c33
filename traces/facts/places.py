"""Acceptance by place in the draft: of its tokens, and of its levels. Pure functions on decisions.

A tree has several tokens at one place, of which at most one is accepted. So a level's rate counts
rounds, not tokens: Sequoia (arXiv:2402.12374) and EAGLE (its n-alpha) use such rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specscope.engine.trace.events import Decision
    from specscope.engine.trace.trace import Trace

NO_NODE = -1
"""`node` of a decision about the target's own token, or about a draft that was never judged."""
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


def per_position(decisions: Iterable[Decision]) -> tuple[Slot, ...]:
    counts: dict[int, list[int]] = {}
    for judged in rounds_of(decisions):
        for place, d in judged:
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


def per_level(decisions: Iterable[Decision]) -> tuple[LevelRate, ...]:
    """Return the acceptance of each level that a round reached."""
    counts: dict[int, list[int]] = {}
    for judged in rounds_of(decisions):
        for level, accepted in decided_levels(judged):
            count = counts.setdefault(level, [0, 0])
            count[0] += 1
            count[1] += accepted
    return tuple(LevelRate(level, n, kept, kept / n) for level, (n, kept) in sorted(counts.items()))


def decided_levels(judged: Sequence[tuple[int, Decision]]) -> list[tuple[int, bool]]:
    """Return the levels that a round decided, and whether one of their tokens was accepted.

    A level below an accepted leaf is decided, too: the target's own token is at its place.
    """
    drafted = {place for place, d in judged if d.outcome in FATES}
    accepted = {place for place, d in judged if d.outcome == "accepted"}
    decided = drafted & {place for place, d in judged if d.outcome != "discarded"}
    return [(level, level in accepted) for level in sorted(decided)]


def drafted_levels(decisions: Iterable[Decision]) -> tuple[int, int]:
    """Return how many levels of all drafts had an accepted token, and how many were drafted."""
    kept, all_levels = 0, 0
    for judged in rounds_of(decisions):
        all_levels += len({place for place, d in judged if d.outcome in FATES})
        kept += len({place for place, d in judged if d.outcome == "accepted"})
    return kept, all_levels


def level_rate(levels: Sequence[LevelRate]) -> float | None:
    """Return the share of decided levels with an accepted token; of chains accepted / tested.

    Siblings of a tree count once: those that lost beside an accepted one are no rejections.
    """
    reached = sum(level.reached for level in levels)
    return sum(level.accepted for level in levels) / reached if reached else None


def first_rate(decisions: Iterable[Decision]) -> float | None:
    """Return how often the first of the tokens that continue an accepted path was accepted.

    Of chains it is accepted / tested. Of trees it is what chains of the same drafter would have:
    siblings that lost beside an accepted one are no rejections, and ones that won are no chain's.
    """
    return level_rate(first_levels(decisions))


def first_levels(decisions: Iterable[Decision]) -> tuple[LevelRate, ...]:
    """Return how often these first tokens were accepted at each place."""
    counts: dict[int, list[bool]] = {}
    for judged in rounds_of(decisions):
        nodes = [(place, d) for place, d in judged if d.node >= 0]
        path = {-1, *(d.node for _, d in nodes if d.outcome == "accepted")}
        backwards = sorted(nodes, key=lambda one: -one[1].node)
        first = {d.parent: (place, d) for place, d in backwards if d.parent in path}
        for place, d in first.values():
            if d.outcome != "discarded":
                counts.setdefault(place, []).append(d.outcome == "accepted")
    found = ((place, len(tests), sum(tests)) for place, tests in sorted(counts.items()))
    return tuple(LevelRate(place, n, kept, kept / n) for place, n, kept in found)


def per_level_of(traces: Iterable[Trace]) -> tuple[LevelRate, ...]:
    counts: dict[int, tuple[int, int]] = {}
    for row in (row for trace in traces for row in per_level(trace.decisions)):
        reached, accepted = counts.get(row.level, (0, 0))
        counts[row.level] = (reached + row.reached, accepted + row.accepted)
    return tuple(LevelRate(level, n, kept, kept / n) for level, (n, kept) in sorted(counts.items()))


def rounds_of(decisions: Iterable[Decision]) -> Iterator[list[tuple[int, Decision]]]:
    """Yield (place, decision) of all tokens of each round, the target's own included."""
    rounds: dict[tuple[int, int], list[Decision]] = {}
    for d in decisions:
        rounds.setdefault((d.sequence, d.step), []).append(d)
    for judged in rounds.values():
        first = min(d.position for d in judged)
        yield [(d.position - first + 1, d) for d in judged]


def slots_of(histogram: Sequence[int], gamma: int) -> tuple[Slot, ...]:
    padded = [*histogram, *[0] * (gamma + 1 - len(histogram))]
    reached = list(accumulate(reversed(padded)))[::-1][: gamma + 1]
    return tuple(
        Slot(slot, reached[0], tested, accepted, accepted / tested if tested else None, accepted / reached[0])
        for slot, (tested, accepted) in enumerate(pairwise(reached), 1)
        if reached[0]
    )


def levels_of(histogram: Sequence[int], gamma: int) -> tuple[LevelRate, ...]:
    return tuple(
        LevelRate(s.slot, s.tested, s.accepted or 0, s.conditional)
        for s in slots_of(histogram, gamma)
        if s.conditional is not None
    )


def has_trees(decisions: Iterable[Decision]) -> bool:
    return any(d.node != NO_NODE and d.parent != d.node - 1 for d in decisions)
