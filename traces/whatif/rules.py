"""Agreement under another acceptance rule, from the recorded token, p and q.

At temperature 0 all rules accept the same drafts. Above it a run accepts a draft with probability
sum min(p, q) under rule 1, p(argmax q) under rule 2 with greedy drafts, and sum p q under rule 2
with sampled drafts. The output's token y is itself drawn from p, so given y these probabilities
are min(1, q(y) / p(y)), whether y is the argmax of q, and q(y). They need no token but y.

A trace has five tokens of each row. Where y is none of the drafter's five, log(q / p) is taken as
normal, with the deviation that it has over the listed tokens of the recording.
"""

from __future__ import annotations

from math import log
from statistics import NormalDist, pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from specscope.engine.trace.events import Decision, Top
    from specscope.engine.trace.trace import Trace

FIRST = "target"
"""The rule of a token that the target drew itself: no draft was tested there."""


TINY = 1e-30
"""A probability that is taken as 0: a small temperature makes such ones."""


class Way(NamedTuple):
    """How a run drafts and tests above temperature 0."""

    rule: str
    sampled: bool
    """Whether drafts are drawn from q; else they are its argmax."""


def way_of(cfg: Any) -> Way:
    """Return the way of a method with these settings, a Config."""
    rule, drafts = (getattr(cfg, name, "") for name in ("acceptance", "drafts"))
    if rule == "match":
        return Way("match", drafts == "sampled")
    sampled = rule == "rejection" or drafts != "greedy"
    return Way("ratio" if sampled else "match", sampled)


def recorded_way(trace: Trace) -> Way | None:
    """Return the way of a stored run; None at temperature 0, or without a test of a drafter."""
    tests = (d for d in trace.decisions if d.node >= 0 <= d.draft_span and d.rule in ("ratio", "match"))
    first = next(tests, None)
    if first is None or not trace.header.sampling.get("temperature"):
        return None
    return Way(first.rule, first.rule == "ratio" or trace.header.config.get("drafts") == "sampled")


class Rule:
    """What decides about the recorded drafts under another way.

    `sampling` has temperature, top-k and top-p of p and q; each of `tests` is the test of a draft
    and the decision of the output's token.
    """

    def __init__(
        self, old: Way, new: Way, sampling: Mapping[str, Any], tests: Iterable[tuple[Decision, Decision]]
    ) -> None:
        self._old, self._new, self._sampling = old, new, sampling
        self._deviation = pstdev([0.0, *(x for test, own in tests for x in self._logs(test, own))])

    def chance(self, test: Decision, own: Decision) -> float | None:
        """Return the probability that a tested draft agrees with the output's token.

        It is None if p or q is not recorded.
        """
        if not test.top_q or not own.p:
            return None
        if self._new == Way("match", False):
            return float(own.token == (test.top_q[0][0] if self._old.sampled else test.token))
        q = self._q(test)
        if own.q is not None and self._old.sampled:
            q[own.token] = own.q
        if self._new.rule == "match":
            return q.get(own.token, 0.0)
        return min(1.0, q[own.token] / own.p) if own.token in q else self._rest(q, dict(own.top_p))

    def _q(self, test: Decision) -> dict[int, float]:
        """Return the most probable tokens of q; greedy drafts have unprocessed ones."""
        return dict(test.top_q if self._old.sampled else processed(test.top_q, self._sampling))

    def _logs(self, test: Decision, own: Decision) -> Iterable[float]:
        """Yield log(q / p) of the listed tokens; an unlisted one has half of the last one's."""
        if test.top_q and own.top_p:
            q, p = self._q(test), dict(own.top_p)
            last_q, last_p = min(q.values()) / 2, min(p.values()) / 2
            pairs = ((q.get(token, last_q), p.get(token, last_p)) for token in {*q, *p})
            yield from (log(ours / theirs) for ours, theirs in pairs if min(ours, theirs) > TINY)

    def _rest(self, q: Mapping[int, float], p: Mapping[int, float]) -> float:
        """Return the mean of min(1, q / p) over tokens that q does not list."""
        last, s, normal = min(p.values(), default=0.0), self._deviation, NormalDist()
        rest_q, rest_p = 1 - sum(q.values()), 1 - sum(p.get(t, min(x, last)) for t, x in q.items())
        if min(rest_q, rest_p) < 1e-9 or not s:
            return float(rest_q >= rest_p)
        mean = log(rest_q / rest_p) - s * s / 2
        return rest_q / rest_p * normal.cdf(-mean / s - s) + normal.cdf(mean / s)


def processed(top: Top, sampling: Mapping[str, Any]) -> Top:
    """Return unprocessed probabilities under a temperature, top-k and top-p.

    The unlisted rest is taken as tokens that are as probable as the last listed one.
    """
    temperature = sampling.get("temperature") or 1.0
    top = tuple(sorted(top, key=lambda one: -one[1]))
    most, last = top[0][1], top[-1][1]
    if not most:
        return top
    # relative to the most probable token: powers of a small temperature would all be 0
    weights = {token: (q / most) ** (1 / temperature) for token, q in top}
    rest = max(0.0, 1 - sum(q for _, q in top))
    others = rest / last * weights[top[-1][0]] if last > TINY else 0.0
    if (top_k := int(sampling.get("top_k") or 0)) > 0:
        weights = dict([*weights.items()][:top_k])
        others = 0.0 if top_k <= len(top) else others
    top_p = sampling.get("top_p")
    nucleus = 1.0 if top_p is None else top_p
    total = sum(weights.values()) + others
    kept, mass = dict[int, float](), 0.0
    for token, weight in weights.items():
        if mass >= nucleus and kept:
            break
        kept[token] = weight / total
        mass += weight / total
    if mass >= nucleus:  # the nucleus has no unlisted token
        kept = {token: q / mass for token, q in kept.items()}
    return tuple(kept.items())
