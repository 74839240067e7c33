"""The acceptance audit: how many tested drafts the recorded rule keeps, and how many were kept.

Each test has bounds of its chance, by what is recorded before its outcome. A test of unknown chance
has the bounds 0 and 1, so that it speaks for the engine whatever its outcome: p that is known of
accepted drafts only shows nothing. See "Acceptance audit" in docs/methods/metrics.md. Pure
functions on traces.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import exp, expm1, inf, isfinite, log, log1p
from typing import TYPE_CHECKING, NamedTuple

from specscope.traces.facts.imported import origin
from specscope.traces.facts.joined import joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from specscope.engine.trace.events import Decision, Header
    from specscope.engine.trace.trace import Trace

ALPHA = 1e-4
"""Probability of a note about a sound run, per kind of note."""
LEVELS = 1000
"""Bounds are rounded outwards to 1 / LEVELS and moved by one more: recorded p, q are rounded."""
TILTS = tuple(sign * 0.01 * 2**k for sign in (-1, 1) for k in range(11))
"""Logarithms of the odds that alternatives multiply the chances' by, smallest for large runs."""
TIE = 0.01
"""Difference of two logits up to which rounding decides which one is larger."""
WINDOWS, FEWEST = 12, 20
"""Most parts of a run in time, and fewest tests of one."""
RULES = {
    "ratio": "min(1, p/q)",
    "match": "the match with the target's own draw",
    "greedy": "the target's most probable token",
    "typical": "typical acceptance",
}
"""What the sentences call a rule."""
_NOTHING = (0.0, 1.0)


class Test(NamedTuple):
    """A decision about a drafted token, or about the children of one token together (`match`)."""

    __test__ = False  # pytest: no test of its own
    step: int
    place: int
    """1 is right after the prefix; of a tree the level."""
    rule: str
    """Of `RULES`; empty if the temperature is unknown."""
    low: float
    """Bounds of the chance to be accepted."""
    high: float
    accepted: bool


@dataclass(frozen=True)
class AuditPart:
    """Some of the tests: all, those of a place, of a stretch of time, or of a run."""

    name: str
    tests: Sequence[Test]

    @property
    def tested(self) -> int:
        return len(self.tests)

    @cached_property
    def unknown(self) -> int:
        """Tests of which nothing is known."""
        return sum((t.low, t.high) == _NOTHING for t in self.tests)

    @cached_property
    def kept(self) -> int:
        return sum(t.accepted for t in self.tests)

    @cached_property
    def low(self) -> float:
        """Bounds of the expected number of accepted ones."""
        return sum(t.low for t in self.tests)

    @cached_property
    def high(self) -> float:
        return sum(t.high for t in self.tests)

    @cached_property
    def deviation(self) -> float:
        """The standard deviation at the bound that is nearer to `kept`."""
        chances = (t.low if self.kept <= self.low else t.high for t in self.tests)
        return sum(a * (1 - a) for a in chances) ** 0.5

    @property
    def rules(self) -> list[str]:
        """What decided, in words."""
        return sorted({RULES[t.rule] for t in self.tests if t.rule})

    @property
    def z(self) -> float | None:
        """By how many standard deviations `kept` is outside of the bounds; None without chance."""
        outside = self.kept - min(max(self.kept, self.low), self.high)
        return outside / self.deviation if self.deviation > 0.5 else None

    @cached_property
    def evidence(self) -> float:
        """Logarithm of the e-value; it exceeds log(1 / a) in a share a of sound runs at most.

        The e-value is the mean likelihood ratio of alternatives that multiply the odds of every
        test by one factor. The bound is Ville's inequality: it holds however a chance depends on
        the tests before it, and wherever the run ends.
        """
        low = Counter(max(0, int(t.low * LEVELS) - 1) for t in self.tests)
        high = Counter(min(LEVELS, 1 - int(-t.high * LEVELS // 1)) for t in self.tests)
        found = [
            tilt * self.kept
            - sum(n * log1p(level / LEVELS * expm1(tilt)) for level, n in (low if tilt < 0 else high).items())
            for tilt in TILTS
        ]
        most = max(found)
        return most + log(sum(exp(one - most) for one in found) / len(found))


@dataclass(frozen=True)
class Audit:
    """All tests, then by place and over time; of several runs by run."""

    whole: AuditPart
    places: tuple[AuditPart, ...]
    stretches: tuple[AuditPart, ...]

    @cached_property
    def contradicted(self) -> AuditPart | None:
        """The part that a sound verification would not have, the whole one if it is such a part.

        Half of `ALPHA` is the whole's, the other half is shared by the parts (Bonferroni).
        """
        parts = (*self.places, *self.stretches)
        bounds = (log(2 / ALPHA), log(2 * max(1, len(parts)) / ALPHA))
        if self.whole.evidence > bounds[0]:
            return self.whole
        worst = max(parts, key=lambda part: part.evidence, default=None)
        return worst if worst and worst.evidence > bounds[1] else None

    @property
    def sentence(self) -> str:
        """That the acceptance contradicts the recorded rule; empty if it does not."""
        part = self.contradicted
        if part is None:
            return ""
        few = part.kept < part.low
        expected, bound = (part.low, "at least ") if few else (part.high, "at most ")
        exact = part.high - part.low < 0.05
        where = "" if part is self.whole else f", {part.name}"
        left = f" ({part.unknown} without a known chance)" if part.unknown else ""
        z = "" if part.z is None else f" (z = {part.z:.1f})"
        rule = part.rules[0] if len(part.rules) == 1 else "the recorded rules"
        return (
            f"Of {part.tested} tested drafts{left}{where}, {'' if exact else bound}{expected:.1f} were expected to be kept and "
            f"{part.kept} were{z}: the verification does not follow {rule}, or used other p and q than the recorded ones."
        )


def audit(*traces: Trace) -> Audit | None:
    """Return the audit of runs, pooled; None if no test has a known chance."""
    rows = [list(tests_of(trace)) for trace in traces]
    everything = AuditPart("all", [test for tests in rows for test in tests])
    if everything.unknown == everything.tested:
        return None
    places: dict[int, list[Test]] = {}
    for test in everything.tests:
        places.setdefault(test.place, []).append(test)
    if len(traces) == 1:
        stretches = list(_windows(everything.tests))
    else:
        ids = [trace.header.run_id for trace in traces]
        stretches = [AuditPart(f"run {name}", tests) for name, tests in zip(ids, rows, strict=True) if tests]
    named = (AuditPart(f"place {place}", places[place]) for place in sorted(places))
    return Audit(everything, tuple(named), tuple(stretches))


def _windows(tests: Sequence[Test]) -> Iterator[AuditPart]:
    count = min(WINDOWS, len(tests) // FEWEST)
    for i in range(count if count > 1 else 0):
        rows = tests[i * len(tests) // count : (i + 1) * len(tests) // count]
        yield AuditPart(f"steps {rows[0].step} to {rows[-1].step}", rows)


def tests_of(trace: Trace) -> Iterator[Test]:
    """Yield the tests of a run in order; none of those whose rule is not recorded.

    A recorded loop that cuts its output reports the acceptances behind the cut, but not the
    rejections. Tests behind the cut are left out.
    """
    header, told = trace.header, trace.header.sampling.get("temperature")
    temperature = told if isinstance(told, int | float) else None
    recorded = origin(header) is not None
    for one in joined(trace).values():
        end = one.round.emitted if recorded and one.round else inf
        siblings: dict[int, list[tuple[int, Decision]]] = {}
        for place, d in one.placed:
            if d.node >= 0 and place <= end:
                siblings.setdefault(d.parent, []).append((place, d))
        for rows in siblings.values():
            yield from _tests(header, temperature, rows)


def _tests(header: Header, temperature: float | None, rows: Sequence[tuple[int, Decision]]) -> Iterator[Test]:
    """Yield the tests of the children of one token, or of the prefix.

    Rule `match` accepts the child that the target draws: so they are one test, which a child that
    is not named as tested belongs to, too.
    """
    tested = [(place, d) for place, d in rows if d.outcome in ("accepted", "rejected") and d.rule in RULES]
    if not tested:
        return
    place, first = tested[0]
    rule = "greedy" if temperature == 0 else first.rule if temperature is not None else ""
    if first.rule == "match":
        bounds = [_bounds(header, d, rule) for _, d in rows]
        low, high = (min(1.0, sum(ends)) for ends in zip(*bounds, strict=True))
        yield Test(first.step, place, rule, low, high, any(d.outcome == "accepted" for _, d in tested))
        return
    for i, (_, d) in enumerate(tested):
        residual = i > 0 and rule == "ratio" and origin(header) is not None
        bounds = (
            _NOTHING if residual else _bounds(header, d, rule)
        )  # the recorder has p, not the residual one
        yield Test(d.step, place, rule, *bounds, d.outcome == "accepted")


def _bounds(header: Header, d: Decision, rule: str) -> tuple[float, float]:
    """Return bounds of the chance that a rule accepts a drafted token.

    A draft of the rule `ratio` whose q is unknown may be sampled, or be a point with q = 1.
    """
    if d.p is None or not isfinite(d.p) or not rule:
        return _NOTHING
    if rule == "greedy":
        return _of_best(d.p, [p for token, p in d.top_p if token != d.token])
    if rule == "typical":
        epsilon = header.config.get("epsilon")
        sure = isinstance(epsilon, int | float) and d.p > epsilon * (1 + TIE)
        return (1.0, 1.0) if sure else _NOTHING
    if rule == "ratio" and (d.q is None or not 0 < d.q < inf):
        return min(1.0, d.p), 1.0
    chance = min(1.0, d.p / d.q if rule == "ratio" and d.q else d.p)
    return chance, chance


def _of_best(p: float, others: Iterable[float]) -> tuple[float, float]:
    """Return whether a token is the most probable one, as bounds; unknown at a tie."""
    rival = max(others, default=None)
    known = 1 - p if rival is None else rival
    if p > known * (1 + TIE):
        return 1.0, 1.0
    return (0.0, 0.0) if rival is not None and rival > p * (1 + TIE) else _NOTHING
