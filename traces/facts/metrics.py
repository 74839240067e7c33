"""The metrics of a run, which `assets/figures.toml` defines. Pure functions on a `Trace`.

A rate without anything to count is None, and so is what the file of an imported run does not hold.
Decoding is `waiting.decode_window`: the time after the prefill of all models.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from specscope.engine.trace.events import NO_DEVICES
from specscope.traces.facts import counted, fates, padding, waiting
from specscope.traces.facts.calibration import calibration, trials
from specscope.traces.facts.forks import lookups, untaken
from specscope.traces.facts.imported import origin, with_unknown
from specscope.traces.facts.places import FATES, LevelRate, Slot, levels_of, per_level, per_position, slots_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from specscope.engine.trace.events import Decision, Span
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.imported import Counts


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of one run; `assets/figures.toml` defines each."""

    tokens: int | None
    seconds: float | None
    decode_seconds: float | None
    tokens_per_second: float | None
    tokens_per_second_per_sequence: float | None
    tokens_per_second_with_prefill: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    target_forwards: int | None
    draft_forwards: int | None
    drafted: int | None
    accepted: int | None
    rejected: int | None
    discarded: int | None
    acceptance_rate: float | None
    acceptance_rate_tested: float | None
    rollback_rate: float | None
    expected_acceptance: float | None
    calibration_error: float | None
    dsi_acceptance: float | None
    tokens_per_target_forward: float | None
    mean_accepted_length: float | None
    acceptance_length: float | None
    least_acceptance_length: float | None
    padding_ratio: float | None
    padding_share: float | None
    attention_cells: int | None
    run_length: float | None
    per_position: tuple[Slot, ...]
    per_level: tuple[LevelRate, ...]
    draft_seconds_per_100_tokens: float | None
    verify_seconds_per_100_tokens: float | None
    c: float | None
    waiting: dict[str, float | None]
    occupancy: dict[str, float]
    measured_occupancy: dict[str, float]
    sp_degree: int | None
    hit_rate: float | None
    tokens_per_hit: float | None
    tokens_per_miss: float | None
    draft_rows_per_token: float | None
    wasted_device_seconds: float | None
    preempted_device_seconds: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(trace: Trace, band: Sequence[waiting.Band] | None = None) -> Metrics:
    """Return the metrics of a run, which may be in progress, stopped, failed or imported."""
    known = waiting.band(trace) if band is None else band
    metrics, imported = _of_rows(trace, known), origin(with_unknown(trace).header)
    if imported is None:
        return metrics
    if imported.counts is not None:
        metrics = replace(metrics, **_of_counts(imported.counts))
    empty: dict[str, Any] = {
        "waiting": {},
        "occupancy": {},
        "measured_occupancy": {},
        "per_position": (),
        "per_level": (),
    }
    names = imported.figures & {f.name for f in fields(Metrics)}
    known = {name: empty.get(name) for name in names}
    told = counted.figures(trace.windows) if trace.windows else imported.stated
    return replace(metrics, **known | dict(told))


def _of_counts(counts: Counts) -> dict[str, Any]:
    """Return the metrics that counts determine; rejections need a single draft length."""
    steps, accepted, drafted, gamma = counts.steps, counts.accepted, counts.drafted, counts.gamma
    rejected = None if gamma is None else steps - sum(counts.histogram[gamma:])
    tested = None if rejected is None else accepted + rejected
    return {
        "tokens": counts.tokens,
        "drafted": drafted,
        "accepted": accepted,
        "rejected": rejected,
        "discarded": None if drafted is None or tested is None else drafted - tested,
        "acceptance_rate": _ratio(accepted, drafted or 0),
        "acceptance_rate_tested": _ratio(accepted, tested or 0),
        "mean_accepted_length": _ratio(accepted, steps),
        "acceptance_length": _ratio(accepted + steps, steps),
        "per_position": () if gamma is None else slots_of(counts.histogram, gamma),
        "per_level": () if gamma is None else levels_of(counts.histogram, gamma),
    }


def _of_rows(trace: Trace, band: Sequence[waiting.Band]) -> Metrics:
    start, end = waiting.decode_window(trace)
    forwards, steps = waiting.forwards(trace), sum(s.kind == "step" for s in trace.spans)
    drafts = [s for s in forwards if waiting.side(s) == "drafter"]
    verifies = [s for s in forwards if waiting.side(s) == "target"]
    outcomes = [d.outcome for d in trace.decisions if d.outcome in FATES]
    accepted, rejected = outcomes.count("accepted"), outcomes.count("rejected")
    drafted, found = len(outcomes) + untaken(trace), lookups(trace)
    hits, misses = ([one for one in found if bool(one.taken) == hit] for hit in (True, False))
    draft_rows = [s.rows for s in drafts]
    tokens = len(trace.commits)
    timed, decoded = tokens - fates.prefilled(trace, before=True), tokens - fates.prefilled(trace)
    whole = trace.footer.time if trace.footer else end
    decode = max(0, max(c.time for c in trace.commits) - start) if tokens else None
    run_length = _mean(_runs(trace.decisions))
    judging = [r.accepted for r in trace.rounds if r.drafted]
    several = len(trace.header.prompts) > 1
    padded = sum(sum(counts.values()) for counts in padding.shortfalls(trace).values())
    emitted = padding.emitted(trace)
    batches = [[fmean(emitted[s]) for s in batch if s in emitted] for batch in padding.batches(trace)]
    calibrated = calibration(trials(trace))
    return Metrics(
        tokens=tokens,
        seconds=whole / 1e9,
        decode_seconds=None if decode is None else decode / 1e9,
        tokens_per_second=_ratio(timed, (decode or 0) / 1e9),
        tokens_per_second_per_sequence=_ratio(decoded, _sequence_time(trace) / 1e9),
        tokens_per_second_with_prefill=_ratio(tokens, whole / 1e9),
        ttft_ms=min((c.time for c in trace.commits), default=0) / 1e6 if tokens else None,
        tpot_ms=_time_per_token(trace),
        target_forwards=len(verifies) + steps,
        draft_forwards=len(drafts),
        drafted=drafted,
        accepted=accepted,
        rejected=rejected,
        discarded=drafted - accepted - rejected,
        acceptance_rate=_ratio(accepted, drafted),
        acceptance_rate_tested=_ratio(accepted, accepted + rejected),
        rollback_rate=_ratio(drafted - accepted, drafted),
        expected_acceptance=calibrated and calibrated.expected,
        calibration_error=calibrated and calibrated.error,
        dsi_acceptance=None if run_length is None else 1 - 1 / (1 + run_length),
        tokens_per_target_forward=_ratio(decoded, len(verifies) + steps),
        mean_accepted_length=_mean(judging),
        acceptance_length=_mean([n for counts in emitted.values() for n in counts]),
        least_acceptance_length=_mean([min(batch) for batch in batches if batch]),
        padding_ratio=_mean(list(padding.padding_ratios(trace).values())) if several else None,
        padding_share=_ratio(padded, padded + tokens) if several else None,
        attention_cells=sum(s.cells for s in verifies),
        run_length=run_length,
        per_position=per_position(trace),
        per_level=per_level(trace),
        draft_seconds_per_100_tokens=_ratio(_seconds(drafts) * 100, decoded),
        verify_seconds_per_100_tokens=_ratio(_seconds(verifies) * 100, decoded),
        c=_ratio(_median(verifies), _median(drafts)) or None,
        waiting=_waiting(trace, waiting.overlap(trace, band)),
        occupancy=waiting.occupancy(trace),
        measured_occupancy=measured_occupancy(trace),
        sp_degree=fates.sp_degree(trace),
        hit_rate=_ratio(len(hits), len(found)),
        tokens_per_hit=_mean([one.following.emitted for one in hits]),
        tokens_per_miss=_mean([one.following.emitted for one in misses]),
        draft_rows_per_token=_ratio(sum(draft_rows), decoded) if min(draft_rows, default=-1) > 0 else None,
        wasted_device_seconds=_seconds(fates.wasted(trace)),
        preempted_device_seconds=_seconds(fates.preempted(trace)),
    )


def measured_occupancy(trace: Trace) -> dict[str, float]:
    start, end = waiting.decode_window(trace)
    loads: dict[str, list[float]] = {}
    for sample in trace.occupancy:
        if start <= sample.time <= end and sample.device not in NO_DEVICES:
            loads.setdefault(sample.device, []).append(sample.busy)
    return {device: fmean(shares) for device, shares in loads.items()}


def speedup(metrics: Metrics, baseline: Metrics) -> float | None:
    return _ratio(metrics.tokens_per_second or 0, baseline.tokens_per_second or 0) or None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _seconds(work: Iterable[Span]) -> float:
    return sum(s.end - s.start for s in work) / 1e9


def _median(work: Iterable[Span]) -> float:
    times = [s.end - s.start for s in work if s.outcome == "done"]
    return median(times) if times else 0


def _sequence_time(trace: Trace) -> int:
    """Return the decoding time of each sequence, summed: from its prefill to its last token, in ns.

    A sequence that waited for a place in the batch begins with the last prefill before its first
    token.
    """
    prefills = [0, *sorted(s.end for s in trace.spans if s.kind == "prefill")]
    return sum(max(t) - prefills[bisect_right(prefills, min(t)) - 1] for t in _times(trace))


def _time_per_token(trace: Trace) -> float | None:
    return _mean([(max(t) - min(t)) / (len(t) - 1) / 1e6 for t in _times(trace) if len(t) > 1])


def _times(trace: Trace) -> list[list[int]]:
    """Return the times of the tokens of each sequence."""
    times: dict[int, list[int]] = {}
    for commit in trace.commits:
        times.setdefault(commit.sequence, []).append(commit.time)
    return list(times.values())


def _runs(decisions: Iterable[Decision]) -> list[int]:
    """Return the lengths of the runs of accepted tokens; a corrected token ends a run.

    A last run without a correction counts if it is not empty: else a drafter that is always right
    would have none.
    """
    runs: list[int] = []
    open_runs: dict[int, int] = {}
    for d in decisions:
        if d.outcome == "accepted":
            open_runs[d.sequence] = open_runs.get(d.sequence, 0) + 1
        elif d.outcome == "corrected":
            runs.append(open_runs.pop(d.sequence, 0))
    return runs + list(open_runs.values())


def _waiting(trace: Trace, shares: dict[str, float]) -> dict[str, float | None]:
    """Return the shares of the band; two of them are waiting if the drafter has its own device."""
    waits = {"drafter_waits": shares["target"], "target_waits": shares["draft"]}
    return {**shares, **(waits if waiting.apart(trace) else dict.fromkeys(waits))}
