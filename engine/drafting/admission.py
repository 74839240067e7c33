"""Draft lengths under load: the places that bring more than the rows of their verification cost.

Source: DSpark (arXiv:2607.05147), algorithm 1. A *place* of a draft is a token of a chain, or a
level of a tree. Its *survival* is the probability that it and all places before it are accepted. A
round of S requests emits S + the sum of the survivals of its places. Places are admitted in falling
order of survival while tokens per second grow; the first fall ends it.

The lengths are chosen before the drafts are drawn, from earlier rounds, so the output keeps its
distribution. DSpark's drafter always drafts a whole block. Here each place is a forward of the
drafter, which the first admitted request pays for all: the rule is applied to drafts of each depth,
with the time of drafting as given, and the depth with the most tokens per second is chosen. Depth 0
turns speculation off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specscope.engine.drafting.pace import Curve
from specscope.engine.types import Verdict, levels_of

START = 0.8
"""Acceptance rate of a run's first place before any was judged."""
PRIOR = 4.0
"""Observations that the rate of the place before, or of all requests, counts as."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the forwards of a round."""

    target: Curve
    """Rows -> seconds, with at least two numbers of rows."""
    drafter: Curve = ()
    """The same for one forward of the drafter; empty for a drafting head, which counts as free."""
    judging: float = 0.0
    """Seconds that a round with drafts takes besides forwards."""

    def verify(self, rows: np.ndarray) -> np.ndarray:
        return _at(self.target, rows)

    def draft(self, rows: np.ndarray) -> float:
        """Return the seconds of a draft with these rows in its forwards, one per level."""
        return float(_at(self.drafter, rows).sum()) if self.drafter and len(rows) else 0.0


class Prospect(NamedTuple):
    """What is known about the drafts of a round before they are drawn."""

    survivals: np.ndarray
    """Probability that each place is accepted, (S, L), falling in each row; 0 for a place that
    cannot be drafted."""
    nodes: np.ndarray
    """Tokens of each level, (L,): 1 in a chain."""
    others: int = 0
    """Rows of the forward that belong to prompts."""


class Lengths(NamedTuple):
    """Places to draft for each request, (S,) whole numbers, and the tokens/s to expect."""

    places: np.ndarray
    speed: float


def by_survival(known: Prospect, costs: Costs) -> Lengths:
    """Return the length of each request's draft."""
    depths = range(1, known.survivals.shape[1] + 1)
    return _fastest(known, [_admitted(known, costs, depth) for depth in depths], costs)


def by_batch(known: Prospect, costs: Costs) -> Lengths:
    """Return one length for all requests, as far as they can draft it."""
    possible = (known.survivals > 0).sum(1)
    depths = range(1, known.survivals.shape[1] + 1)
    return _fastest(known, [np.minimum(depth, possible) for depth in depths], costs)


def _fastest(known: Prospect, candidates: Sequence[np.ndarray], costs: Costs) -> Lengths:
    plain = np.zeros(len(known.survivals), dtype=np.int64)
    found = [Lengths(places, speed(known, places, costs)) for places in (plain, *candidates)]
    return max(found, key=lambda lengths: lengths.speed)  # among equals the shortest


def speed(known: Prospect, places: np.ndarray, costs: Costs) -> float:
    """Return the expected tokens/s of a round with these draft lengths."""
    drafted = np.arange(known.survivals.shape[1]) < places[:, None]
    requests = drafted.sum(0)
    levels = int(places.max(initial=0))
    tokens = len(places) + known.survivals[drafted].sum()
    rows = len(places) + known.others + (requests * known.nodes).sum()
    drafting = costs.draft(requests[:levels] * _parents(known.nodes)[:levels])
    return tokens / (drafting + float(costs.verify(rows)) + costs.judging * (levels > 0))


def _admitted(known: Prospect, costs: Costs, depth: int) -> np.ndarray:
    """Return DSpark's lengths for drafts of at most `depth` places, whose forwards are paid."""
    count, survivals = len(known.survivals), known.survivals[:, :depth]
    order = np.argsort(-survivals, axis=None, kind="stable")
    order = order[survivals.ravel()[order] > 0]
    gains, rows = survivals.ravel()[order], known.nodes[order % depth]
    tokens = count + np.concatenate([[0.0], np.cumsum(gains)])
    verified = count + known.others + np.concatenate([[0.0], np.cumsum(rows)])
    drafting = costs.draft(count * _parents(known.nodes)[:depth])
    speeds = tokens / (drafting + costs.judging + costs.verify(verified))
    falls = np.flatnonzero(np.diff(speeds) < 0)
    admitted = order[: falls[0] if len(falls) else len(order)]
    return np.bincount(admitted // depth, minlength=count)


def _parents(nodes: np.ndarray) -> np.ndarray:
    """Return the rows of each level's forward: the nodes of the level above."""
    return np.concatenate([[1.0], nodes[:-1]])


def _at(curve: Curve, rows: np.ndarray) -> np.ndarray:
    """Interpolate a curve; beyond its last number it goes on as steep as before."""
    numbers, seconds = np.array(curve).T
    slope = max(0.0, (seconds[-1] - seconds[-2]) / (numbers[-1] - numbers[-2]))
    return np.interp(rows, numbers, seconds) + slope * np.maximum(0, rows - numbers[-1])


class PlaceRates:
    """How often each place is accepted, given that those before it were: of a request, or of all.

    A rate of few observations is drawn towards that of `others` at this place, or for all requests
    towards that of the place before.
    """

    def __init__(self, others: PlaceRates | None = None) -> None:
        self._others = others
        self._hits, self._offers = np.zeros(0), np.zeros(0)

    def observe(self, accepted: int, offered: int) -> None:
        """Count a draft of `offered` places, of which the first `accepted` were accepted."""
        tested = min(accepted + 1, offered)
        self._reserve(tested)
        self._hits[:accepted] += 1
        self._offers[:tested] += 1

    def survivals(self, places: int) -> np.ndarray:
        """Return the probability that each of a draft's first places is accepted, (places,)."""
        return np.cumprod(self._rates(places))

    def _rates(self, places: int) -> np.ndarray:
        self._reserve(places)
        hits, offers = self._hits[:places], self._offers[:places]
        if self._others is not None:
            return (hits + PRIOR * self._others._rates(places)) / (offers + PRIOR)
        rates, before = np.empty(places), START
        for place in range(places):
            before = rates[place] = (hits[place] + PRIOR * before) / (offers[place] + PRIOR)
        return rates

    def _reserve(self, places: int) -> None:
        more = max(0, places - len(self._hits))
        self._hits, self._offers = np.pad(self._hits, (0, more)), np.pad(self._offers, (0, more))


def offered(verdict: Verdict) -> list[int]:
    """Return the number of nodes at each level of a judged draft."""
    counts = Counter(levels_of(verdict.draft.parents))
    return [counts[level] for level in range(len(counts))]
