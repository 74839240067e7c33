"""N-gram pools: the look-ahead window of each round, the n-grams it tried, and those it gained."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from traces.view.branches import judged_drafts
from traces.view.clock import decoding_clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.trace.events import Decision
    from engine.trace.trace import Trace


class TriedView(TypedDict):
    """An n-gram that the round's draft tried."""

    ids: list[int]
    """Its token ids; the first is the token that it continues."""
    accepted: int
    """How many of the other ids were accepted."""


class NgramsView(TypedDict):
    """A round that used a pool of n-grams. Texts of the ids are in the run's `pieces`."""

    sequence: int
    step: int
    t: float
    model: str
    """The model whose window it is."""
    window: list[list[int]]
    """The window's levels; the last one holds the model's own predictions."""
    tried: list[TriedView]
    gained: list[list[int]]
    """N-grams added to the pool."""
    size: int
    """N-grams in the pool after the round."""


def ngrams(trace: Trace) -> list[NgramsView]:
    """Return the complete rounds that used a pool."""
    clock = decoding_clock(trace)
    times = {(r.sequence, r.step): clock(r.time) for r in trace.rounds}
    drafts = judged_drafts(trace.decisions)
    return [
        {
            "sequence": p.sequence,
            "step": p.step,
            "t": times[p.sequence, p.step],
            "model": p.model,
            "window": [list(level) for level in p.window],
            "tried": [
                {"ids": list(gram), "accepted": _accepted(gram, drafts.get((p.sequence, p.step), {}))}
                for gram in p.tried
            ],
            "gained": [list(gram) for gram in p.gained],
            "size": p.size,
        }
        for p in trace.pooled
        if (p.sequence, p.step) in times
    ]


def _accepted(gram: Sequence[int], nodes: Mapping[int, Decision]) -> int:
    """Return how many tokens of an n-gram, its first one aside, were accepted on its branch."""
    children = {(d.parent, d.token): d for d in nodes.values()}
    roots = [n for n in sorted(nodes, reverse=True) if nodes[n].token == gram[0]]
    for root in [*roots, -1]:
        path: list[Decision] = []
        for token in gram[1:]:
            child = children.get((path[-1].node if path else root, token))
            if child is None:
                break
            path.append(child)
        if len(path) == len(gram) - 1:
            return sum(d.outcome == "accepted" for d in path)
    return 0
