"""The draft that brings the most tokens per second, from measured costs and acceptance rates.

Source: Sequoia (Chen et al. 2024, arXiv:2402.12374), the choice of a tree from acceptance rates by
rank and from the time of a verification; here the rates depend on the level, too, and the time of
drafting counts. With independent rates the best tree of n nodes holds the n most probable paths.

A round drafts, verifies and emits the accepted tokens and one token of the target. Autoregressive
decoding emits one token per one-row forward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, nlargest
from itertools import accumulate
from typing import Any, TypeAlias

from specscope.engine.drafting.pace import Probe, overlapped, plain_seconds, round_seconds
from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.drafting.tree import Ranks
from specscope.engine.trace.events import TOO_BUSY

LONGEST = 16
"""Longest draft that is planned for PEARL."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A draft and its prediction."""

    levels: int
    nodes: int
    tokens: float
    """Per target forward."""
    speedup: float
    """Predicted tokens per second over those of autoregressive decoding."""
    paths: tuple[Ranks, ...] = ()
    """The nodes of a static tree; empty if the drafter's probabilities choose them."""
    width: int = 0
    """Most nodes of one level, where each level has the same limit; else 0."""
    seconds: float = 0.0
    """Per token."""
    low: float = 0.0
    """The smallest speed-up that earlier runs lead to expect; 0 without such runs."""
    high: float = 0.0
    runs: int = 0
    """Earlier runs that scaled the speed-up."""
    others: float = 0.0
    """Cores that other programs used while the models were measured."""
    shared: bool = False
    """Whether both models are on one GPU: drafting beside a verification then saves no time."""

    def facts(self) -> dict[str, Any]:
        """Return the plan for a run's header, without the paths."""
        facts = {
            "levels": self.levels,
            "nodes": self.nodes,
            "tokens_per_forward": round(self.tokens, 3),
            "speedup": round(self.speedup, 3),
        }
        learned = {"low": round(self.low, 3), "high": round(self.high, 3), "runs": self.runs}
        disturbed = {"others": round(self.others, 2)} if self.others >= TOO_BUSY else {}
        shared = {"shared": True} if self.shared else {}
        return facts | (learned if self.runs else {}) | disturbed | shared


Best: TypeAlias = Callable[[Probe], Plan]


def best_tree(probe: Probe) -> Plan:
    """Return the static tree with the most predicted tokens per second.

    A chain if the rates have one rank. If autoregressive decoding is faster than every draft, the
    plan's speed-up is below 1.
    """
    return _fastest(probe, _trees(probe))


def best_dynamic(probe: Probe, top: int, levels: int = 0, nodes: int = 0) -> Plan:
    """Return the dynamic tree with the most predicted tokens per second.

    Args:
        probe: Measured with the same `top`.
        top: Nodes per level that get children.
        levels: Levels of the tree; 0 chooses them.
        nodes: Nodes that are verified; 0 chooses them.
    """
    return _fastest(probe, _dynamic_trees(probe, top, levels, nodes))


def best_wide(probe: Probe, width: int = 0, levels: int = 0) -> Plan:
    """Return the tree of at most `width` nodes per level with the most predicted tokens per second.

    Args:
        probe: Measured with at least this width and this number of levels.
        width: Most nodes of one level; 0 chooses it.
        levels: Levels of the tree, all measured ones if there are fewer; 0 chooses them.
    """
    return _fastest(probe, _wide_trees(probe, width, levels))


def best_parallel(probe: Probe) -> Plan:
    """Return PEARL's draft length with the most predicted tokens per second.

    Args:
        probe: Of chains that are drafted first and verified then.
    """
    paces = ((gamma, overlapped(probe, gamma)) for gamma in range(1, LONGEST + 1))
    plan = Plan(0, 0, 0.0, 0.0, shared=probe.shared)
    plans = (
        _at(probe, replace(plan, levels=gamma, nodes=gamma, tokens=pace.tokens), pace.seconds)
        for gamma, pace in paces
    )
    return max(plans, key=lambda plan: plan.speedup)


Candidate: TypeAlias = tuple[Plan, Sequence[int]]
"""A draft without its speed-up, and the number of nodes with children of each level."""


def _fastest(probe: Probe, candidates: Iterable[Candidate]) -> Plan:
    plans = [_at(probe, p, round_seconds(probe, p.nodes, parents)) for p, parents in candidates]
    return max(plans, key=lambda plan: plan.speedup)  # among equals the first, which is the smallest


def _at(probe: Probe, plan: Plan, seconds: float) -> Plan:
    """Return the plan with its speed, given the seconds of a round."""
    per_token = seconds / plan.tokens
    return replace(plan, speedup=plain_seconds(probe) / per_token, seconds=per_token)


def _trees(probe: Probe) -> Iterable[Candidate]:
    for levels in range(1, len(probe.rates) + 1):
        nodes = likeliest(probe.rates[:levels], _most_nodes(probe))
        sums = accumulate((probability for _, probability in nodes), initial=1.0)
        for count, tokens in enumerate(sums):
            paths = tuple(sorted((path for path, _ in nodes[:count]), key=lambda path: (len(path), path)))
            if paths:
                depth = len(paths[-1])
                parents = Counter(map(len, {path[:-1] for path in paths}))
                yield Plan(depth, count, tokens, 0.0, paths), [parents[i] for i in range(depth)]


def _dynamic_trees(probe: Probe, top: int, levels: int, nodes: int) -> Iterable[Candidate]:
    depths = [levels] if levels else range(1, len(probe.orders) + 1)
    for depth in depths:
        shares = probe.orders[min(depth, len(probe.orders)) - 1][: _most_nodes(probe)]
        counts = [min(nodes, len(shares))] if nodes else range(1, len(shares) + 1)
        for count in counts:
            yield Plan(depth, count, 1 + sum(shares[:count]), 0.0), [1] + [top] * (depth - 1)


def _wide_trees(probe: Probe, width: int, levels: int) -> Iterable[Candidate]:
    """Yield trees whose levels hold the most probable children of the level above."""
    widest = max(map(len, probe.rates))
    for limit in [width] if width else range(1, widest + 1):
        level, nodes, tokens, parents = [1.0], 0, 1.0, list[int]()
        for depth, ranks in enumerate(probe.rates, 1):
            parents.append(len(level))
            level = nlargest(limit, (above * rate for above in level for rate in ranks))
            nodes, tokens = nodes + len(level), tokens + sum(level)
            fits = nodes <= _most_nodes(probe) or nodes == 1
            if depth == min(levels, len(probe.rates)) or (fits and not levels):
                yield Plan(depth, nodes, tokens, 0.0, width=limit), [*parents]


def _most_nodes(probe: Probe) -> int:
    """Return the nodes of the largest draft whose verification was measured, at least 1."""
    return max(1, min(MOST_NODES, probe.verify[-1][0] - 1))


def likeliest(rates: Sequence[Sequence[float]], most: int) -> list[tuple[Ranks, float]]:
    """Return up to `most` paths with the largest probabilities, the product of their rates.

    A path's parent and elder sibling are before it, so the first n paths are a tree.

    Args:
        rates: [level][rank], falling in each level.
        most: Number of paths.
    """
    heap: list[tuple[float, int, Ranks]] = []
    found = list[tuple[Ranks, float]]()

    def push(above: float, path: Ranks) -> None:
        level, rank = len(path) - 1, path[-1]
        if level < len(rates) and rank < len(rates[level]):
            heappush(heap, (-above * rates[level][rank], len(path), path))

    push(1.0, (0,))
    above = dict[Ranks, float]({(): 1.0})
    while heap and len(found) < most:
        negative, _, path = heappop(heap)
        above[path] = -negative
        found.append((path, -negative))
        push(above[path[:-1]], (*path[:-1], path[-1] + 1))
        push(-negative, (*path, 0))
    return found
