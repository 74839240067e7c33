"""Every figure that is computed from a run, one definition each. Pure functions on a `Trace`.

What a run does not define (a rate of nothing) is None. `DEFINITIONS` holds the sentence that the playground and the
report show beside each figure. Decoding is what happens in `waiting.decode_window`: after the prefill of all models.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from traces import batches, pool, waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engine.trace.events import Decision, Span
    from engine.trace.trace import Trace

_FORWARDS = frozenset({"draft", "verify", "pre-verify", "calibrate"})
_FATES = frozenset({"accepted", "rejected", "discarded"})
"""What may become of a draft token; every other decision is about a token of the target's own."""

DEFINITIONS: dict[str, str] = {
    "tokens": "Tokens of the output, over all sequences.",
    "seconds": "Time from the run's start to its end, prefill included.",
    "tokens_per_second": "Tokens divided by the seconds of the whole run, prefill included.",
    "decode_seconds": "Time from the end of prefill to the last committed token.",
    "decode_tokens_per_second": (
        "Tokens divided by decode seconds, so without prefill; speed-ups compare this."
    ),
    "ttft_ms": "Time to first token: from the run's start to its first committed token.",
    "tpot_ms": (
        "Time per output token: (last commit - first commit) / (tokens - 1), the mean over the sequences."
    ),
    "target_forwards": "Forwards of the target while decoding, cancelled ones included.",
    "draft_forwards": "Forwards of the drafter while decoding, cancelled ones included.",
    "drafted": "Draft tokens: accepted, rejected and discarded ones.",
    "accepted": "Draft tokens the target accepted.",
    "rejected": "Draft tokens the target tested and rejected.",
    "discarded": "Draft tokens dropped, not rejected: a token before them did not stay, one in their place was kept, or the text ended.",
    "acceptance_rate": "Accepted / drafted, discarded tokens included.",
    "acceptance_rate_tested": "Accepted / (accepted + rejected): of the tested tokens only.",
    "dsi_acceptance": "DSI's estimate 1 - 1/(1 + n), where n is the run length.",
    "tokens_per_target_forward": (
        "Tokens / target forwards; autoregressive decoding has 1. Counts the target's own tokens too."
    ),
    "mean_accepted_length": (
        "Accepted draft tokens per verification of a draft, without the target's own token."
    ),
    "acceptance_length": (
        "EMS-SD's average acceptance length: tokens per verification, the target's own included."
    ),
    "least_acceptance_length": (
        "The acceptance length of the sequence that has the least: its batch ends when it does."
    ),
    "padding_ratio": (
        "EMS-SD's average padding ratio (its figure 4): what the sequences of a round got less than the one that got most / "
        "tokens they got. The vanilla method pads KV caches by that."
    ),
    "padding_share": (
        "The same padding / what all would have got had they got as many as the one that got most."
    ),
    "attention_cells": (
        "Query-key cells that target forwards computed while decoding, in one layer and one head, padding included."
    ),
    "run_length": (
        "PEARL's mean accepted tokens: accepted between two rejections, over any number of verifications."
    ),
    "per_position": (
        "Acceptance by place in the draft: conditional is accepted / tested, unconditional is "
        "accepted / drafted."
    ),
    "draft_seconds_per_100_tokens": "Seconds of drafter forwards per 100 output tokens; one that several devices do together counts once.",
    "verify_seconds_per_100_tokens": "Seconds of target forwards per 100 output tokens; one that several devices do together counts once.",
    "c": (
        "Median time of a target forward / median time of a drafter forward, with the rows this run fed them."
    ),
    "waiting": (
        "Shares of decoding. both, draft, target, none: which models work at once; they sum to 1. "
        "drafter_waits, target_waits: share in which that model's own devices idle while the other "
        "model works."
    ),
    "occupancy": "Share of decoding in which each device works, from the spans.",
    "measured_occupancy": (
        "Mean load of each device while decoding, as psutil or NVML measured it: of the whole device, whoever used it."
    ),
    "sp_degree": (
        "DSI's speculation parallelism as used: the most target devices that worked at the same time while decoding."
    ),
    "wasted_device_seconds": (
        "Device seconds of cancelled forwards and of drafts of which no token was accepted."
    ),
    "preempted_device_seconds": (
        "The part of the wasted ones that was called off because a draft was wrong or the text ended."
    ),
}
"""What each field of `Metrics` is, as shown beside it in the playground and the report."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Acceptance at one place of the draft; place 1 comes right after the committed prefix."""

    slot: int
    drafted: int
    tested: int
    accepted: int
    conditional: float | None
    """accepted / tested: given that all before it were accepted."""
    unconditional: float
    """accepted / drafted."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of one run; DEFINITIONS says what each is."""

    tokens: int
    seconds: float
    tokens_per_second: float | None
    decode_seconds: float | None
    decode_tokens_per_second: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    target_forwards: int
    draft_forwards: int
    drafted: int
    accepted: int
    rejected: int
    discarded: int
    acceptance_rate: float | None
    acceptance_rate_tested: float | None
    dsi_acceptance: float | None
    tokens_per_target_forward: float | None
    mean_accepted_length: float | None
    acceptance_length: float | None
    least_acceptance_length: float | None
    padding_ratio: float | None
    padding_share: float | None
    attention_cells: int
    run_length: float | None
    per_position: tuple[Slot, ...]
    draft_seconds_per_100_tokens: float | None
    verify_seconds_per_100_tokens: float | None
    c: float | None
    waiting: dict[str, float | None]
    occupancy: dict[str, float]
    measured_occupancy: dict[str, float]
    sp_degree: int
    wasted_device_seconds: float
    preempted_device_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""
        return asdict(self)


def measure(trace: Trace) -> Metrics:
    """Return all figures of a run, also of one that is still running or ended badly."""
    start, end = waiting.decode_window(trace)
    forwards = _forwards(trace)
    drafts = [s for s in forwards if waiting.side(s) == "drafter"]
    verifies = [s for s in forwards if waiting.side(s) == "target"]
    fates = [d.outcome for d in trace.decisions if d.outcome in _FATES]
    accepted, rejected = fates.count("accepted"), fates.count("rejected")
    tokens = len(trace.commits)
    whole = trace.footer.time if trace.footer else end
    decode = max(0, max(c.time for c in trace.commits) - start) if tokens else None
    run_length = _mean(_runs(trace.decisions))
    judging = [r.accepted for r in trace.rounds if r.drafted]
    several = len(trace.header.prompts) > 1
    padding = sum(sum(missing) for missing in batches.missing(trace).values())
    return Metrics(
        tokens=tokens,
        seconds=whole / 1e9,
        tokens_per_second=_ratio(tokens, whole / 1e9),
        decode_seconds=None if decode is None else decode / 1e9,
        decode_tokens_per_second=_ratio(tokens, (decode or 0) / 1e9),
        ttft_ms=min((c.time for c in trace.commits), default=0) / 1e6 if tokens else None,
        tpot_ms=_time_per_token(trace),
        target_forwards=len(verifies),
        draft_forwards=len(drafts),
        drafted=len(fates),
        accepted=accepted,
        rejected=rejected,
        discarded=len(fates) - accepted - rejected,
        acceptance_rate=_ratio(accepted, len(fates)),
        acceptance_rate_tested=_ratio(accepted, accepted + rejected),
        dsi_acceptance=None if run_length is None else 1 - 1 / (1 + run_length),
        tokens_per_target_forward=_ratio(tokens, len(verifies)),
        mean_accepted_length=_mean(judging),
        acceptance_length=_mean([r.emitted for r in trace.rounds]),
        least_acceptance_length=min(batches.acceptance_lengths(trace).values(), default=None),
        padding_ratio=_ratio(padding, tokens) if several else None,
        padding_share=_ratio(padding, padding + tokens) if several else None,
        attention_cells=sum(s.cells for s in verifies),
        run_length=run_length,
        per_position=_per_position(trace.decisions),
        draft_seconds_per_100_tokens=_ratio(_seconds(drafts) * 100, tokens),
        verify_seconds_per_100_tokens=_ratio(_seconds(verifies) * 100, tokens),
        c=_ratio(_median(verifies), _median(drafts)) or None,
        waiting={**waiting.overlap(trace), **_mutual(trace, end - start)},
        occupancy={name: row[0] for name, row in waiting.occupancy(trace, 1).items()},
        measured_occupancy=measured_occupancy(trace),
        sp_degree=pool.sp_degree(trace),
        wasted_device_seconds=_seconds(waiting.wasted(trace)),
        preempted_device_seconds=_seconds(pool.preempted(trace)),
    )


def measured_occupancy(trace: Trace) -> dict[str, float]:
    """Return the mean of each device's measured samples in the decode window; devices without one are left out."""
    start, end = waiting.decode_window(trace)
    found: dict[str, list[float]] = {}
    for sample in trace.occupancy:
        if start <= sample.time <= end:
            found.setdefault(sample.device, []).append(sample.busy)
    return {name: fmean(shares) for name, shares in found.items()}


def speedup(metrics: Metrics, baseline: Metrics) -> float | None:
    """Return how many times faster a run decodes than the baseline; None where one of them has no speed."""
    return _ratio(metrics.decode_tokens_per_second or 0, baseline.decode_tokens_per_second or 0) or None


def _forwards(trace: Trace) -> list[Span]:
    """Return the forwards while decoding; of one that several devices do, the leader's span, as long as any of them works."""
    leaders: list[Span] = []
    shares: dict[int, list[Span]] = {}
    for span in trace.spans:
        if span.kind in _FORWARDS:
            shares.setdefault(span.id - span.rank, []).append(span)
            if span.rank == 0:
                leaders.append(span)
    return [replace(s, end=s.start + _covered(shares[s.id])) if len(shares[s.id]) > 1 else s for s in leaders]


def _covered(spans: Iterable[Span]) -> int:
    """Return the nanoseconds in which at least one of the spans lasts."""
    total = reached = 0
    for span in sorted(spans, key=lambda s: s.start):
        total += max(0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _seconds(spans: Iterable[Span]) -> float:
    return sum(s.end - s.start for s in spans) / 1e9


def _median(spans: Iterable[Span]) -> float:
    times = [s.end - s.start for s in spans if s.outcome == "done"]
    return median(times) if times else 0


def _time_per_token(trace: Trace) -> float | None:
    times: dict[int, list[int]] = {}
    for commit in trace.commits:
        times.setdefault(commit.sequence, []).append(commit.time)
    return _mean([(max(t) - min(t)) / (len(t) - 1) / 1e6 for t in times.values() if len(t) > 1])


def _runs(decisions: Iterable[Decision]) -> list[int]:
    """Return the lengths of the runs of accepted tokens; each ends where the target corrects a token.

    An unfinished last run counts when it is not empty: else a drafter that is always right would have none.
    """
    runs: list[int] = []
    open_runs: dict[int, int] = {}
    for d in decisions:
        if d.outcome == "accepted":
            open_runs[d.sequence] = open_runs.get(d.sequence, 0) + 1
        elif d.outcome == "corrected":
            runs.append(open_runs.pop(d.sequence, 0))
    return runs + list(open_runs.values())


def _per_position(decisions: Iterable[Decision]) -> tuple[Slot, ...]:
    rounds: dict[tuple[int, int], list[Decision]] = {}
    for d in decisions:
        rounds.setdefault((d.sequence, d.step), []).append(d)
    counts: dict[int, list[int]] = {}
    for judged in rounds.values():
        first = min(d.position for d in judged)
        for d in judged:
            if d.outcome in _FATES:
                count = counts.setdefault(d.position - first + 1, [0, 0, 0])
                count[0] += 1
                count[1] += d.outcome != "discarded"
                count[2] += d.outcome == "accepted"
    return tuple(
        Slot(slot, drafted, tested, accepted, _ratio(accepted, tested), accepted / drafted)
        for slot, (drafted, tested, accepted) in sorted(counts.items())
    )


def _mutual(trace: Trace, window: int) -> dict[str, float | None]:
    """Return the waiting of the devices that serve one model only, averaged over them; None without such a device."""
    waits = waiting.waits(trace)

    def share(role: str, reason: str) -> float | None:
        names = {d.name for d in trace.header.devices if d.role == role}
        waited = sum(w.end - w.start for w in waits if w.device in names and w.reason == reason)
        return _ratio(waited, window * len(names))

    return {"drafter_waits": share("drafter", "verify"), "target_waits": share("target", "draft")}
