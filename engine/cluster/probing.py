"""Measures what `engine/drafting/planner.py` plans from, with ordinary runs of the cluster."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from specscope.engine.drafting.pace import Curve, Probe
from specscope.engine.files import parse_json, read_text
from specscope.engine.trace.events import Decision, Round, Span
from specscope.engine.trace.trace import Trace
from specscope.engine.worker.jobs import Measure
from specscope.engine.worker.worker import Worker

if TYPE_CHECKING:
    from specscope.engine.cluster.execution import Listener
    from specscope.engine.cluster.placement import Placement
    from specscope.engine.trace.events import Event

SMALLEST = 64 * 2**20
"""Bytes of the weights of the smallest target whose drafts are planned: those of a smaller one fit
into a processor's caches, and its runs end before the measurement would."""
BUDGET_S = 8.0
"""Seconds of a method's measurement; it ends with the round that is running then."""
FEWEST = 24
"""Rounds that are measured in any case."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
MANY_ROWS = (*ROWS, 128, 256, 512)
"""Rows of forwards under load."""
VERIFY_S = 6.0
"""Seconds of the measurement of a model's forwards, which all methods share."""
NEW_TOKENS = 24
"""Tokens of each run."""
CONTEXT = 64
"""Most tokens of a prompt, and cached rows of the timed forwards."""
PRIOR = 4.0
"""Observations that the rate over all levels counts as, in the rate of one level."""
PROMPTS = Path(__file__).parents[2] / "assets" / "prompts" / "bench.json"
LONGEST = 1 << 20

RunProbe: TypeAlias = "Callable[[str, Listener, threading.Event], Trace]"
"""(prompt, listener, cancel) -> the trace of a greedy run of `NEW_TOKENS` tokens."""


def is_toy(target: Path) -> bool:
    return sum(file.stat().st_size for file in target.glob("*.safetensors")) < SMALLEST


def measure_probe(verify: Curve, run: RunProbe, cancel: threading.Event) -> Probe | None:
    """Measure a method by runs of about `BUDGET_S`; None if `cancel` is set."""
    end = time.monotonic() + BUDGET_S
    traces, rounds = list[Trace](), 0
    for prompt in parse_json(read_text(PROMPTS, LONGEST))["prompts"]:
        over = threading.Event()

        def listen(event: Event, over: threading.Event = over) -> None:
            nonlocal rounds
            rounds += isinstance(event, Round)
            if cancel.is_set() or (rounds >= FEWEST and time.monotonic() > end):
                over.set()

        if not cancel.is_set():
            traces.append(run(prompt, listen, over))
        if cancel.is_set():
            return None
        if over.is_set():
            break
    return probe_of(verify, traces)


def measure_rows(placement: Placement, cancel: threading.Event, model: str, rows: tuple[int, ...]) -> Curve:
    """Return a model's seconds for each number of rows; fewer numbers if `cancel` is set.

    More rows never take less time: where the medians say so, noise did it.
    """
    worker = placement.workers_for(placement.base).by_model[model][0]  # it may start now
    job = Measure(model, context=CONTEXT, repeats=9, rows=rows, seconds=VERIFY_S)
    seconds = placement.on_loop(_times(worker, job, cancel))
    return tuple(zip(rows, accumulate(seconds, max), strict=False))


async def _times(worker: Worker, job: Measure, cancel: threading.Event) -> tuple[float, ...]:
    ticket = worker.submit(job)
    while not ticket.reply.done():
        await asyncio.wait([ticket.reply], timeout=0.05)
        if cancel.is_set():
            ticket.stop()
    return ticket.reply.result().value


def probe_of(verify: Curve, traces: Sequence[Trace]) -> Probe | None:
    """Return the facts that greedy runs of one sequence show; None if they drafted nothing.

    A run that was stopped counts as far as it went.
    """
    drafts = [draft for trace in traces for draft in _drafts(trace)]
    first, later = _draft_times(traces)
    if not first:
        return None
    most = max(levels for levels, _ in first)
    whole = [nodes for trace in traces for nodes in _drafts(trace) if _remaining(trace, nodes) >= most]
    rests = [rest for trace in traces for rest in _rests(trace)]
    outside = max(0.0, statistics.median(rests)) if rests else 0.0
    return Probe(verify, first, later, outside, rates_of(drafts), orders_of(whole or drafts), len(drafts))


def _remaining(trace: Trace, nodes: Sequence[Decision]) -> int:
    """Return the tokens that the run may still emit when it drafts these nodes."""
    header = trace.header
    return len(header.prompt_ids[0]) + header.limits["max_new_tokens"] - nodes[0].position


def _drafts(trace: Trace) -> list[list[Decision]]:
    steps = defaultdict[int, list[Decision]](list)
    for decision in trace.decisions:
        if decision.node >= 0:
            steps[decision.step].append(decision)
    return [sorted(nodes, key=lambda d: d.node) for nodes in steps.values()]


def rates_of(drafts: Iterable[Sequence[Decision]]) -> tuple[tuple[float, ...], ...]:
    """Return how often the accepted child has each rank, [level][rank], as in `Probe.rates`.

    A rate of few observations is drawn towards the rate of its rank over all levels (`PRIOR`). The
    nodes of a draft are in order, siblings by rank.
    """
    hits, offers = defaultdict[tuple[int, int], int](int), defaultdict[tuple[int, int], int](int)
    for nodes in drafts:
        at, level = -1, 0
        while children := [d for d in nodes if d.parent == at]:
            for rank, child in enumerate(children):
                offers[level, rank] += 1
                hits[level, rank] += child.outcome == "accepted"
            accepted = next((d.node for d in children if d.outcome == "accepted"), None)
            if accepted is None:
                break
            at, level = accepted, level + 1
    pooled = {
        rank: sum(n for (_, r), n in hits.items() if r == rank)
        / sum(n for (_, r), n in offers.items() if r == rank)
        for rank in {rank for _, rank in offers}
    }

    def rate(level: int, rank: int) -> float:
        return (hits[level, rank] + PRIOR * pooled[rank]) / (offers[level, rank] + PRIOR)

    widths = [
        1 + max(r for at, r in offers if at == level) for level in range(1 + max(at for at, _ in offers))
    ]
    return tuple(
        tuple(sorted((rate(level, rank) for rank in range(width)), reverse=True))
        for level, width in enumerate(widths)
    )


def orders_of(drafts: Sequence[Sequence[Decision]]) -> tuple[tuple[float, ...], ...]:
    """Return how often each of a draft's most probable nodes is accepted, as `Probe.orders`."""
    counts = list[defaultdict[int, int]]()
    for nodes in drafts:
        levels, paths = _levels(nodes), {-1: 1.0}
        for d in nodes:
            paths[d.node] = paths[d.parent] * (d.q or 0.0)
        for depth in range(1, 1 + max(levels.values())):
            if len(counts) < depth:
                counts.append(defaultdict(int))
            shallow = [d for d in nodes if levels[d.node] <= depth]
            for i, d in enumerate(sorted(shallow, key=lambda d: -paths[d.node])):
                counts[depth - 1][i] += d.outcome == "accepted"
    return tuple(tuple(n / len(drafts) for _, n in sorted(row.items())) for row in counts)


def _levels(nodes: Sequence[Decision]) -> dict[int, int]:
    """Return the level of each node, from 1; 0 for -1, the last token before the draft."""
    levels = {-1: 0}
    for d in nodes:
        levels[d.node] = levels[d.parent] + 1
    return levels


def _draft_times(traces: Sequence[Trace]) -> tuple[Curve, Curve]:
    first, later = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for trace in traces:
        forwards = _forwards(trace, "draft")
        for nodes in _drafts(trace):
            if spans := forwards[nodes[0].step]:
                first[max(_levels(nodes).values())].append(_seconds(spans[0]))
            for span in spans[1:]:
                later[span.rows].append(_seconds(span))
    return _medians(first), _medians(later)


def _rests(trace: Trace) -> list[float]:
    """Return the seconds of each round outside of its forwards, from round 2 on."""
    forwards = _forwards(trace, "draft", "verify")
    return [
        (late.time - early.time) / 1e9 - sum(map(_seconds, forwards[late.step]))
        for early, late in pairwise(trace.rounds)
        if late.drafted
    ]


def _forwards(trace: Trace, *kinds: str) -> dict[int, list[Span]]:
    spans = defaultdict[int, list[Span]](list)
    for span in sorted(trace.spans, key=lambda span: span.start):
        if span.kind in kinds and span.outcome == "done":
            spans[span.step].append(span)
    return spans


def _seconds(span: Span) -> float:
    return (span.end - span.start) / 1e9


def _medians(times: Mapping[int, Sequence[float]]) -> Curve:
    return tuple((number, statistics.median(seconds)) for number, seconds in sorted(times.items()))
