"""Pools of n-grams: the look-ahead window that feeds one, what a round tried from it, and what it learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traces.branches import judged_drafts
from traces.tokens import decoding_clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engine.trace.events import Decision
    from engine.trace.trace import Trace


def ngrams(trace: Trace) -> list[dict[str, Any]]:
    """Return a row per round that used a pool; token ids, whose texts are among the view's pieces.

    Each has `window` (its levels, the last one what the model said), `gained`, `size`, and `tried`: the `ids` of an n-gram, of which the
    first is the token it came after, and how many of the others were `accepted`. Rounds that are not complete have none.
    """
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
    """Return how many tokens after the first of an n-gram were accepted, where its branch hangs in the draft."""
    below = {(d.parent, d.token): d for d in nodes.values()}
    ends = [n for n in sorted(nodes, reverse=True) if nodes[n].token == gram[0]]
    for at in [*ends, -1]:
        path: list[Decision] = []
        while len(path) < len(gram) - 1:
            found = below.get((path[-1].node if path else at, gram[1 + len(path)]))
            if found is None:
                break
            path.append(found)
        if len(path) == len(gram) - 1:
            return sum(d.outcome == "accepted" for d in path)
    return 0
