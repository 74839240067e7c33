"""Acceptance by level and the times of forwards: the measured part of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from engine.drafters.pace import Probe, seconds_at
from traces import spans
from traces.comparable import batch_size
from traces.imported import origin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.trace.events import Span
    from engine.trace.trace import Trace
    from traces.metrics import Metrics


_WIDEST = 1024
"""Further rows of the widest predicted forward."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Acceptance and times of a run."""

    probe: Probe
    """Its rates have one rank: the share of the tested drafts of a level that were accepted, where
    all levels above were. Levels that no draft reached have `any`."""
    nodes: tuple[float, ...]
    """[level]: drafted nodes, the mean over the drafts with this level."""
    any: float
    """Accepted / (accepted + rejected), the acceptance rate at every level of a chain."""
    drafting: float
    """Share of the rounds that verified a draft."""
    plain: float
    """The baseline's seconds per token: a *plain token*."""

    @property
    def draft(self) -> float:
        """Drafter time per level, or of a whole draft in one forward, in plain tokens."""
        return self.probe.first[0][1] / self.plain

    def forward(self, rows: int) -> float:
        """Return the time of a target forward of `rows` rows, in plain tokens."""
        return seconds_at(self.probe.verify, rows) / self.plain


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
    draft = sum(s.end - s.start for s in drafts) / max(1, len(drafts)) / 1e9
    if all(s.rows < 2 for s in verifies):
        return None
    first, more = _line(verifies, baseline)
    probe = Probe(
        verify=((1, first), (1 + _WIDEST, first + _WIDEST * more)),
        first=((1, draft),),
        later=() if once else ((1, draft),),
        outside=max(0.0, plain - first),
        rates=(*((level,) for level in levels), (rate,)),
        orders=(),
        rounds=len(judging),
    )
    return Rates(probe, tuple(nodes[: len(levels)]), rate, len(judging) / len(trace.rounds), plain)


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
    """Return the baseline's mean seconds per token while decoding; 0 without tokens."""
    prefill = max((s.end for s in baseline.spans if s.kind == "prefill" and s.step == 0), default=0)
    tokens = len(baseline.commits)
    return (max(c.time for c in baseline.commits) - prefill) / tokens / 1e9 if tokens else 0.0


def _line(verifies: Iterable[Span], baseline: Trace) -> tuple[float, float]:
    """Return the seconds of a one-row forward of the target, and of each further row.

    The line goes through the median one-row forward of the baseline and the run's mean forward.
    """
    plain = [s.end - s.start for s in spans.forwards(baseline) if spans.side(s) == "target"]
    first = float(median(plain)) if plain else 0.0
    wide = [s for s in verifies if s.rows > 1]
    rows, time = fmean(s.rows for s in wide), fmean(s.end - s.start for s in wide)
    return first / 1e9, max(0.0, (time - first) / (rows - 1)) / 1e9
