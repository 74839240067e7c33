"""The figures of a run, computed from its rows in the plainest way.

Own code from the sentences of `assets/figures.toml`: no helper of `traces.facts.metrics` is used,
so that a fault in one of the two is seen.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from specscope.engine.trace.trace import Trace

SCORING = ("verify", "pre-verify")
DRAFTING = ("draft", "glue", "branch")
FATES = ("accepted", "rejected", "discarded")


def share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def mean(values: Any) -> float | None:
    values = list(values)
    return fmean(values) if values else None


def covered(spans: Any) -> int:
    """Return the time in which any of the spans is under way."""
    total, reached = 0, 0
    for start, end in sorted((s.start, s.end) for s in spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def figures(trace: Trace) -> dict[str, Any]:
    """Return every figure by its key in `Metrics`."""
    return {**_of_times(trace), **_of_drafts(trace), **_of_work(trace), **_of_rounds(trace)}


def prefilled(trace: Trace, *, before: bool) -> int:
    """Return the tokens that a prefill decided; with `before`, one before decoding."""
    spans = {s.id for s in trace.spans if s.kind == "prefill" and (s.step == 0 or not before)}
    rounds = sum(r.emitted for r in trace.rounds if r.span in spans)
    return rounds + sum(c.step == 0 for c in trace.commits)


def window(trace: Trace) -> tuple[int, int]:
    """Return when decoding began and ended."""
    start = max((s.end for s in trace.spans if s.kind == "prefill" and s.step == 0), default=0)
    ends = [*(s.end for s in trace.spans), *(c.time for c in trace.commits), *(r.time for r in trace.rounds)]
    end = max(ends, default=start)
    return start, max(start, min(end, trace.footer.time) if trace.footer else end)


def _of_times(trace: Trace) -> dict[str, Any]:
    tokens, (start, end) = len(trace.commits), window(trace)
    whole = (trace.footer.time if trace.footer else end) / 1e9
    times: dict[int, list[int]] = defaultdict(list)
    for commit in trace.commits:
        times[commit.sequence].append(commit.time)
    ends = [s.end for s in trace.spans if s.kind == "prefill"]
    seconds = max((c.time for c in trace.commits), default=0) - start
    alone = sum(max(t) - max((e for e in ends if e <= min(t)), default=0) for t in times.values())
    return {
        "tokens": tokens,
        "seconds": whole,
        "decode_seconds": max(0, seconds) / 1e9 if tokens else None,
        "tokens_per_second": share(tokens - prefilled(trace, before=True), max(0, seconds) / 1e9),
        "tokens_per_second_per_sequence": share(tokens - prefilled(trace, before=False), alone / 1e9),
        "tokens_per_second_with_prefill": share(tokens, whole),
        "ttft_ms": min(map(min, times.values())) / 1e6 if tokens else None,
        "tpot_ms": mean((max(t) - min(t)) / (len(t) - 1) / 1e6 for t in times.values() if len(t) > 1),
    }


def _of_drafts(trace: Trace) -> dict[str, Any]:
    count = {fate: sum(d.outcome == fate for d in trace.decisions) for fate in FATES}
    count["discarded"] += sum(fork.length for fork in trace.forks if not fork.taken)
    accepted, drafted = count["accepted"], sum(count.values())
    runs, going = list[int](), defaultdict[int, int](int)
    for d in trace.decisions:
        going[d.sequence] += d.outcome == "accepted"
        if d.outcome == "corrected":
            runs.append(going.pop(d.sequence))
    length = mean(runs + [n for n in going.values() if n])
    tested = [d for d in trace.decisions if d.outcome in ("accepted", "rejected") and d.q is not None]
    bins = defaultdict[int, list[Any]](list)
    for d in tested:
        bins[min(9, int(10 * d.q))].append(d)
    gaps = (abs(sum(d.outcome == "accepted" for d in b) - sum(d.q for d in b)) for b in bins.values())
    return {
        **count,
        "drafted": drafted,
        "acceptance_rate": share(accepted, drafted),
        "acceptance_rate_tested": share(accepted, accepted + count["rejected"]),
        "rollback_rate": share(drafted - accepted, drafted),
        "run_length": length,
        "dsi_acceptance": None if length is None else 1 - 1 / (1 + length),
        "calibration_error": share(sum(gaps), len(tested)),
        "places": _places(trace),
        "levels": _levels(trace),
    }


def _groups(trace: Trace) -> list[tuple[int, list[Any]]]:
    """Return of each sequence and step the text's length before it, and its decisions."""
    groups = defaultdict[tuple[int, int], list[Any]](list)
    for d in trace.decisions:
        groups[d.sequence, d.step].append(d)
    return [
        (
            len(trace.header.prompt_ids[i]) + sum(c.sequence == i and c.step < step for c in trace.commits),
            rows,
        )
        for (i, step), rows in groups.items()
    ]


def _places(trace: Trace) -> dict[int, tuple[int, int, int]]:
    """Return place -> (drafted, tested, accepted)."""
    found = defaultdict[int, list[str]](list)
    for before, rows in _groups(trace):
        for d in rows:
            if d.outcome in FATES:
                found[d.position - before + 1].append(d.outcome)
    return {
        place: (len(o), len(o) - o.count("discarded"), o.count("accepted"))
        for place, o in sorted(found.items())
    }


def _levels(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return level -> (rounds that reached it, rounds that accepted a token of it)."""
    found = defaultdict[int, list[bool]](list)
    for before, rows in _groups(trace):
        drafted = {d.position - before + 1 for d in rows if d.outcome in FATES}
        decided = {d.position - before + 1 for d in rows if d.outcome != "discarded"}
        kept = {d.position - before + 1 for d in rows if d.outcome == "accepted"}
        for level in drafted & decided:
            if all(above in kept for above in range(1, level)):
                found[level].append(level in kept)
    return {level: (len(rows), sum(rows)) for level, rows in sorted(found.items())}


def _of_work(trace: Trace) -> dict[str, Any]:
    decided = len(trace.commits) - prefilled(trace, before=False)
    work = [s for s in trace.spans if s.kind in (*SCORING, *DRAFTING, "calibrate")]
    shared = defaultdict[int, list[Any]](list)
    for span in work:
        shared[span.id - span.rank].append(span)
    sides: dict[str, list[tuple[Any, int]]] = {"drafter": [], "target": []}
    for span in work:
        if span.rank == 0:
            sides["drafter" if span.model == "drafter" else "target"].append((span, covered(shared[span.id])))
    medians = [
        median([t for s, t in sides[side] if s.outcome == "done"] or [0]) for side in ("target", "drafter")
    ]
    rows = [s.rows for s, _ in sides["drafter"]]
    taken = {(fork.sequence, fork.step) for fork in trace.forks if fork.taken}
    useful = {d.draft_span for d in trace.decisions if d.outcome == "accepted"}
    judged = {d.draft_span for d in trace.decisions}
    wasted = [
        s
        for s in trace.spans
        if s.outcome == "cancelled"
        or (
            s.kind in DRAFTING
            and s.id - s.rank not in useful
            and not (s.kind == "glue" and (s.sequence, s.step) in taken)
            and (trace.footer is not None or s.id - s.rank in judged)
        )
    ]
    return {
        "target_forwards": len(sides["target"]),
        "draft_forwards": len(sides["drafter"]),
        "tokens_per_target_forward": share(decided, len(sides["target"])),
        "draft_seconds_per_100_tokens": share(sum(t for _, t in sides["drafter"]) / 1e7, decided),
        "verify_seconds_per_100_tokens": share(sum(t for _, t in sides["target"]) / 1e7, decided),
        "draft_rows_per_token": share(sum(rows), decided) if min(rows, default=0) > 0 else None,
        "c": share(*medians) or None,
        "attention_cells": sum(s.cells for s, _ in sides["target"]),
        "wasted_device_seconds": sum(s.end - s.start for s in wasted) / 1e9,
        "sp_degree": max(
            (
                sum(o.start <= s.start < o.end for o, _ in sides["target"] if o.kind in SCORING)
                for s, _ in sides["target"]
                if s.kind in SCORING and s.end > s.start
            ),
            default=0,
        ),
        "shares": _shares(trace),
        "occupancy": _occupancy(trace),
    }


def _shares(trace: Trace) -> dict[str, float]:
    """Return the shares of decoding in which both sides work, one of them, or neither."""
    (lo, hi), total = window(trace), dict.fromkeys(("both", "draft", "target", "none"), 0)
    times = {min(max(t, lo), hi) for s in trace.spans for t in (s.start, s.end)}
    cuts = sorted({lo, hi, *times})
    for start, end in pairwise(cuts):
        first: dict[str, Any] = {}
        for s in sorted(trace.spans, key=lambda s: (s.start, s.id)):
            if s.start <= start and s.end >= end and s.end > s.start:
                first.setdefault(s.device, s)
        sides = {"draft" if s.model == "drafter" else "target" for s in first.values()}
        total["both" if len(sides) == 2 else next(iter(sides), "none")] += end - start
    return {k: v / (hi - lo) for k, v in total.items()} if hi > lo else {**total, "none": 1}


def _occupancy(trace: Trace) -> dict[str, float]:
    lo, hi = window(trace)
    busy = {
        d.name: covered(_Cut(s, lo, hi) for s in trace.spans if s.device == d.name)
        for d in trace.header.devices
    }
    return {name: time / (hi - lo) if hi > lo else 0.0 for name, time in busy.items()}


class _Cut:
    """A span inside of a window."""

    def __init__(self, span: Any, lo: int, hi: int) -> None:
        self.start, self.end = (min(max(time, lo), hi) for time in (span.start, span.end))


def _of_rounds(trace: Trace) -> dict[str, Any]:
    prefills = {s.id for s in trace.spans if s.kind == "prefill"}
    decoding = [r for r in trace.rounds if r.span not in prefills]
    looked = list[tuple[bool, int]]()
    for i, r in enumerate(trace.rounds):
        mine = [fork for fork in trace.forks if (fork.sequence, fork.step) == (r.sequence, r.step)]
        after = next((o for o in trace.rounds[i + 1 :] if o.sequence == r.sequence), None)
        if mine and after is not None:
            looked.append((any(fork.taken for fork in mine), after.emitted))
    return {
        "mean_accepted_length": mean(r.accepted for r in trace.rounds if r.drafted),
        "acceptance_length": mean(r.emitted for r in decoding),
        "hit_rate": share(sum(hit for hit, _ in looked), len(looked)),
        "tokens_per_hit": mean(n for hit, n in looked if hit),
        "tokens_per_miss": mean(n for hit, n in looked if not hit),
        **_padding(trace),
    }


def _padding(trace: Trace) -> dict[str, Any]:
    """Return the padding of each sequence that goes on, up to the round's most tokens."""
    if len(trace.header.prompts) < 2:
        return {"padding_ratio": None, "padding_share": None}
    padded, gained = defaultdict[int, int](int), defaultdict[int, int](int)
    for r in trace.rounds:
        gained[r.sequence] += r.emitted
        most = max(o.emitted for o in trace.rounds if o.step == r.step)
        if any(o.sequence == r.sequence and o.step > r.step for o in trace.rounds):
            padded[r.sequence] += most - r.emitted
    ratios = (padded[i] / n for i, n in gained.items() if n)
    return {
        "padding_ratio": mean(ratios),
        "padding_share": share(sum(padded.values()), sum(padded.values()) + len(trace.commits)),
    }
