"""Acceptance by level and the times of forwards: the measured part of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from traces import spans
from traces.comparable import batch_size
from traces.imported import origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.trace.events import Span
    from engine.trace.trace import Trace
    from traces.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Rates:
    """Acceptance and times of a run; times are in plain tokens, the baseline's time per token."""

    levels: tuple[float, ...]
    """[level]: share of the tested drafts that were accepted, where all levels above were."""
    nodes: tuple[float, ...]
    """[level]: drafted nodes, the mean over the drafts with this level."""
    any: float
    """Accepted / (accepted + rejected), the acceptance rate at every level of a chain."""
    drafting: float
    """Share of the rounds that verified a draft."""
    draft: float
    """Drafter time per level."""
    once: bool
    """Whether one forward drafts all levels, so that `draft` is the time of a whole draft."""
    verify: tuple[float, float]
    """Time of a target forward of one row, and of each further row."""
    rest: float
    """Time of a round outside of the forwards."""

    def forward(self, rows: float) -> float:
        """Return the time of a target forward of `rows` rows."""
        first, more = self.verify
        return first + more * (rows - 1)


def rates_of(trace: Trace, metrics: Metrics, baseline: Trace) -> Rates | None:
    """Return the rates of a run of one sequence.

    None if it verified no draft, or if every target forward had one row: what another row costs is
    then unknown.
    """
    plain = _plain_time(baseline)
    judging = [r for r in trace.rounds if r.drafted]
    rate = metrics.acceptance_rate_tested
    if origin(trace.header) or batch_size(trace) > 1 or not judging or not plain or rate is None:
        return None
    depths, nodes = _shape(trace)
    accepted = [(min(r.accepted, depths.get(r.step, 0)), depths.get(r.step, 0)) for r in judging]
    levels: list[float] = []
    for level in range(max((depth for _, depth in accepted), default=0)):
        tested = [kept > level for kept, depth in accepted if depth > level and kept >= level]
        if not tested:
            break
        levels.append(fmean(tested))
    work = [s for s in spans.forwards(trace) if s.outcome == "done"]
    drafts = [s for s in work if spans.side(s) == "drafter"]
    verifies = [s for s in work if spans.side(s) == "target"]
    drafted = sum(depth for _, depth in accepted)
    once = bool(drafts) and len(drafts) <= len(judging) < drafted
    draft = sum(s.end - s.start for s in drafts) / max(1, len(drafts)) / plain
    if all(s.rows < 2 for s in verifies):
        return None
    first, more = _line(verifies, baseline)
    return Rates(
        levels=tuple(levels),
        nodes=tuple(nodes[: len(levels)]),
        any=rate,
        drafting=len(judging) / len(trace.rounds),
        draft=draft,
        once=once,
        verify=(first / plain, more / plain),
        rest=max(0.0, 1 - first / plain),
    )


def _shape(trace: Trace) -> tuple[dict[int, int], list[float]]:
    """Return the levels of each round's draft, and the mean number of nodes of each level."""
    rounds: dict[int, list[int]] = {}
    for d in trace.decisions:
        if d.node >= 0:
            rounds.setdefault(d.step, []).append(d.position)
    counts: dict[int, list[int]] = {}
    for positions in rounds.values():
        for level, position in enumerate(range(min(positions), max(positions) + 1)):
            counts.setdefault(level, []).append(positions.count(position))
    depths = {step: max(p) - min(p) + 1 for step, p in rounds.items()}
    return depths, [fmean(counts[level]) for level in sorted(counts)]


def _plain_time(baseline: Trace) -> float:
    """Return the baseline's mean time per token while decoding, in ns; 0 without tokens."""
    prefill = max((s.end for s in baseline.spans if s.kind == "prefill" and s.step == 0), default=0)
    tokens = len(baseline.commits)
    return (max(c.time for c in baseline.commits) - prefill) / tokens if tokens else 0.0


def _line(verifies: Iterable[Span], baseline: Trace) -> tuple[float, float]:
    """Return the time of a one-row forward of the target, and of each further row, in ns.

    The line goes through the median one-row forward of the baseline and the run's mean forward.
    """
    plain = [s.end - s.start for s in spans.forwards(baseline) if spans.side(s) == "target"]
    first = float(median(plain)) if plain else 0.0
    wide = [s for s in verifies if s.rows > 1]
    rows, time = fmean(s.rows for s in wide), fmean(s.end - s.start for s in wide)
    return first, max(0.0, (time - first) / (rows - 1))
