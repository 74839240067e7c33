"""The acceptance and the times of a run from which other settings are predicted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean, linear_regression, median
from typing import TYPE_CHECKING

from specscope.engine.drafting.pace import Probe, seconds_at
from specscope.traces.facts import waiting
from specscope.traces.facts.comparable import batch_size
from specscope.traces.facts.experts import rows_read, share_chosen
from specscope.traces.facts.imported import is_foreign, origin
from specscope.traces.facts.joined import joined
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import first_rate, has_trees, level_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.drafting.pace import Curve
    from specscope.engine.trace.events import Span
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics
    from specscope.traces.facts.places import LevelRate

OVERLAP = 0.05
"""Share of decoding from which on the sides are said to work at the same time."""
ALIKE = 0.8
"""Share of a recorded loop's drafts that must have one length for another one to be predicted."""
FEWEST = 3
"""Forwards of other rows than most that tell what a row costs."""
_WIDEST = 1024
"""Further rows of the widest predicted forward."""
_SHARING = 64
"""Rows up to which those of a mixture share experts one by one."""


@dataclass(frozen=True, slots=True)
class RunRates:
    """Acceptance and times of a run."""

    probe: Probe
    """Its rates have one rank: the share of the tested drafts of a level that were accepted, where
    all levels above were. See `by_level`."""
    nodes: tuple[float, ...]
    """[level]: drafted nodes, the mean over the drafts with this level."""
    any: float
    """The acceptance rate at every level of a chain, see `places.first_rate`."""
    drafting: float
    """Share of the rounds that verified a draft."""
    plain: float
    """The baseline's seconds per token: a *plain token*."""
    known: bool = True
    """Whether a forward of one row was measured; else it is taken to be as long as the run's."""
    whole: bool = False
    """Whether only whole drafts were timed, which may be one forward or one for each token."""

    @property
    def draft(self) -> float:
        """In plain tokens, of a level, or of a whole draft in one forward."""
        return self.probe.first[0][1] / self.plain

    def forward(self, rows: int) -> float:
        """In plain tokens."""
        return seconds_at(self.probe.verify, rows) / self.plain


def rates_of(trace: Trace, metrics: Metrics, baseline: Trace | None) -> RunRates | None:
    """Return the rates of a run of one sequence; without a baseline, from its own forwards alone.

    None if it verified no draft, or if every target forward had one row: what another row costs is
    then unknown. Of recordings, only loops that draft chains of one length in turns have rates.
    """
    judging = [r for r in trace.rounds if r.drafted]
    rate, chain = level_rate(metrics.per_level), first_rate(trace)
    if (
        is_foreign(trace.header)
        or (origin(trace.header) and not _drafts_in_turns(trace))
        or batch_size(trace) > 1
        or not waiting.divided(trace)
        or not judging
        or rate is None
        or chain is None
    ):
        return None
    rounds, nodes = joined(trace), _nodes_by_level(trace)
    work = [s for s in waiting.forwards(trace) if s.outcome == "done"]
    drafts = [s for s in work if waiting.side(s) == "drafter"]
    verifies = [s for s in work if waiting.side(s) == "target"]
    drafted = sum(len({d.position for d in rounds.of(r).nodes.values()}) for r in judging)
    once = bool(drafts) and len(drafts) <= len(judging) < drafted
    draft = sum(s.end - s.start for s in drafts) / max(1, len(drafts)) / 1e9
    if all(s.rows < 2 for s in verifies):
        return None
    chosen = share_chosen(trace, verifies)
    first, more, known = _line(verifies, baseline, chosen)
    speed = measure(baseline).tokens_per_second if baseline else None
    outside = waiting.unworked(trace).outside / 1e9 / len(verifies)
    plain = (1 / speed if speed else 0.0) if baseline else first + outside
    if not plain:
        return None
    probe = Probe(
        verify=_curve(first, more, chosen),
        first=((1, draft),),
        later=() if once else ((1, draft),),
        outside=max(0.0, plain - first),
        rates=by_level(metrics.per_level, rate),
        orders=(),
        rounds=len(judging),
    )
    shape, share = tuple(nodes[: len(metrics.per_level)]), len(judging) / len(trace.rounds)
    return RunRates(probe, shape, chain, share, plain, known, whole=once and origin(trace.header) is not None)


def by_level(levels: Sequence[LevelRate], mean: float) -> tuple[tuple[float, ...], ...]:
    """Return the rates of levels, and that of all levels which no draft reached.

    It is the mean over all tested drafts, but not above the last level's.
    """
    return (*((one.rate,) for one in levels), (min(mean, levels[-1].rate),))


def _drafts_in_turns(trace: Trace) -> bool:
    """Return whether a recorded loop drafts chains of one length, and then verifies them."""
    share = alike(trace)[1]
    return share >= ALIKE and waiting.overlap(trace)["both"] < OVERLAP and not has_trees(trace.decisions)


def alike(trace: Trace) -> tuple[int, float]:
    """Return the usual length of a run's drafts, and the share of drafts that have it.

    Drafts that are as long as the rest of the output are left out, unless the run has many: its
    speed is then not that of drafts of one length.
    """
    rest, whole = Counter[int](), list[int]()
    drafted = [r.drafted for r in trace.rounds if r.drafted]
    for r in reversed(trace.rounds):
        rest[r.sequence] += r.emitted
        whole += [r.drafted] * (0 < r.drafted < rest[r.sequence] - 1)
    whole = whole if len(whole) >= ALIKE * len(drafted) else drafted
    return max(drafted, default=0), whole.count(max(whole)) / len(whole) if whole else 1.0


def _nodes_by_level(trace: Trace) -> list[float]:
    """Return the mean number of nodes of each level of the drafts that have it."""
    counts: dict[int, list[int]] = {}
    for one in joined(trace).values():
        positions = Counter(d.position for d in one.nodes.values())
        for level, (_, size) in enumerate(sorted(positions.items())):
            counts.setdefault(level, []).append(size)
    return [fmean(counts[level]) for level in sorted(counts)]


def _curve(first: float, more: float, chosen: float) -> Curve:
    rows = (*range(1, _SHARING + 1), 1 + _WIDEST) if chosen else (1, 1 + _WIDEST)
    return tuple((count, first + more * (rows_read(count, chosen) - 1)) for count in rows)


def _line(verifies: Sequence[Span], baseline: Trace | None, chosen: float) -> tuple[float, float, bool]:
    """Return the seconds of a one-row forward of the target, and of a further row, if measured.

    The last value is whether they are. The line goes through the median one-row forward of the
    baseline and the run's mean forward. Without a baseline it is that of least squares, if several
    forwards had other rows. Of a mixture the further row shares no expert.
    """
    wide = [s for s in verifies if s.rows > 1]
    rows = fmean(rows_read(s.rows, chosen) for s in wide)
    time = fmean(s.end - s.start for s in wide)
    if baseline is not None:
        plain = [s.end - s.start for s in waiting.forwards(baseline) if waiting.side(s) == "target"]
        first = float(median(plain)) if plain else 0.0
        return first / 1e9, max(0.0, (time - first) / (rows - 1)) / 1e9, True
    work = [s for s in verifies if s.rows > 0]
    ((_, most),) = Counter(s.rows for s in work).most_common(1)
    if len(work) - most < FEWEST:
        return time / 1e9, 0.0, False
    sizes = [rows_read(s.rows, chosen) for s in work]
    slope = linear_regression(sizes, [s.end - s.start for s in work]).slope
    slope = min(max(0.0, slope), time / rows)
    return max(0.0, time - slope * (rows - 1)) / 1e9, slope / 1e9, True
