"""Requests of a run under load: when each arrived, began and ended, and the figures of all.

A run under load has its arrivals in the header (`environment["load"]`); everything else is computed
from its rows. A request begins with the first part of its prompt in a forward of the target, or
with its first round. Times are integer nanoseconds since the run's start.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil, floor
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from specscope.engine.run.policies import FIXED, POLICIES
from specscope.traces.facts.joined import spans_by_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.events import Header
    from specscope.engine.trace.trace import Trace


class LoadFacts(NamedTuple):
    """The load of a run."""

    arrivals: tuple[int, ...]
    batch: int
    """Sequences of a forward, at most."""
    chunk: int
    """Prompt tokens in a forward, at most."""
    policy: str = FIXED
    """A key of `POLICIES`."""


class ServedRequest(NamedTuple):
    """One request."""

    sequence: int
    arrival: int
    begin: int | None
    """When it got a KV slot; None while it waits."""
    commits: tuple[tuple[int, int], ...]
    """(time, tokens) of each round that committed tokens."""
    finished: bool

    @property
    def ttft(self) -> int | None:
        """Time to first token: from the arrival to the first commit."""
        return self.commits[0][0] - self.arrival if self.commits else None

    @property
    def gaps(self) -> list[int]:
        """VLLM's inter-token latencies: between rounds, whose tokens appear at once."""
        return [end - start for (start, _), (end, _) in pairwise(self.commits)]

    @property
    def tpot(self) -> float | None:
        """Time per output token: the mean after the first; None with fewer than two tokens.

        vLLM's TPOT, AIPerf's inter-token latency.
        """
        tokens = sum(n for _, n in self.commits)
        return (self.commits[-1][0] - self.commits[0][0]) / (tokens - 1) if tokens > 1 else None

    def meets(self, ttft: float, tpot: float) -> bool:
        """Return whether it finished within limits in nanoseconds for `ttft` and `tpot`."""
        return self.finished and self.ttft is not None and self.ttft <= ttft and (self.tpot or 0.0) <= tpot


class Figures(TypedDict):
    """The figures of a run under load; None where nothing was measured."""

    requests: int
    finished: int
    tokens: int
    seconds: float
    tokens_per_second: float | None
    busy_tokens_per_second: float | None
    """All tokens by the seconds in which a request waits or is served: the idle time between rare
    arrivals does not count."""
    ttft_ms: float | None
    ttft_p95_ms: float | None
    tpot_ms: float | None
    """Median over the requests of their time per output token."""
    tpot_p95_ms: float | None
    itl_ms: float | None
    itl_p95_ms: float | None
    good: int
    good_share: float
    goodput: float | None
    """Good requests by `seconds`."""


def load_of(header: Header) -> LoadFacts | None:
    """Return the load of a run; None for a run without arrivals, or with facts of another form."""
    facts = header.environment.get("load")
    if not isinstance(facts, dict):
        return None
    named = cast("dict[str, Any]", facts)
    arrivals, batch, chunk = (named.get(name) for name in ("arrivals", "batch", "chunk"))
    policy = named.get("policy", FIXED)
    known = isinstance(arrivals, list | tuple) and len(cast("Sequence[Any]", arrivals)) == len(header.prompts)
    if not known or type(batch) is not int or type(chunk) is not int or policy not in POLICIES:
        return None
    times = tuple(cast("Sequence[Any]", arrivals))
    return LoadFacts(times, batch, chunk, policy) if all(type(time) is int for time in times) else None


def requests(trace: Trace) -> list[ServedRequest]:
    load = load_of(trace.header)
    if load is None:
        return []
    spans = spans_by_id(trace)
    begins: dict[int, int] = {}
    work = [(s.sequence, s.start) for s in trace.spans if s.kind == "prefill" and s.model == "target"]
    for sequence, start in (
        *work,
        *((r.sequence, spans[r.span].start if r.span in spans else r.time) for r in trace.rounds),
    ):
        begins[sequence] = min(start, begins.get(sequence, start))
    commits: dict[int, dict[int, int]] = {}
    for c in trace.commits:
        rounds = commits.setdefault(c.sequence, {})
        rounds[c.time] = rounds.get(c.time, 0) + 1
    reasons = trace.footer.reasons if trace.footer else ()
    return [
        ServedRequest(
            i,
            arrival,
            begins.get(i),
            tuple(commits.get(i, {}).items()),
            i < len(reasons) and bool(reasons[i]),
        )
        for i, arrival in enumerate(load.arrivals)
    ]


def figures(trace: Trace, ttft_ms: float, tpot_ms: float) -> Figures:
    """Return the figures of a run under load; the limits are those of a good request (`meets`)."""
    found = requests(trace)
    first, gaps = [r.ttft for r in found if r.ttft is not None], [gap for r in found for gap in r.gaps]
    means = [r.tpot for r in found if r.tpot is not None]
    ends = [r.commits[-1][0] for r in found if r.commits]
    busy = _union([(r.arrival, r.commits[-1][0]) for r in found if r.commits]) / 1e9
    tokens, good = len(trace.commits), sum(r.meets(1e6 * ttft_ms, 1e6 * tpot_ms) for r in found)
    seconds = (max(ends) - min(r.arrival for r in found)) / 1e9 if ends else 0.0
    return {
        "requests": len(found),
        "finished": sum(r.finished for r in found),
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else None,
        "busy_tokens_per_second": tokens / busy if busy else None,
        "ttft_ms": _percentile(first, 0.5),
        "ttft_p95_ms": _percentile(first, 0.95),
        "tpot_ms": _percentile(means, 0.5),
        "tpot_p95_ms": _percentile(means, 0.95),
        "itl_ms": _percentile(gaps, 0.5),
        "itl_p95_ms": _percentile(gaps, 0.95),
        "good": good,
        "good_share": good / len(found) if found else 0.0,
        "goodput": good / seconds if seconds else None,
    }


def stops_paying(mine: dict[int, Figures], plain: dict[int, Figures]) -> int | None:
    """Return the smallest batch size at which a method has fewer tokens/s than plain decoding.

    Both are figures by batch size. Idle time does not count: at a low rate the arrivals alone
    decide the throughput.
    """
    slower = [
        batch
        for batch in sorted(mine.keys() & plain.keys())
        if (mine[batch]["busy_tokens_per_second"] or 0.0) < (plain[batch]["busy_tokens_per_second"] or 0.0)
    ]
    return slower[0] if slower else None


def _union(times: Sequence[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for start, end in sorted(times):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile of nanoseconds in milliseconds."""
    found = percentile(values, share)
    return None if found is None else found / 1e6


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile, interpolated as in vLLM and AIPerf (numpy's default)."""
    if not values:
        return None
    ordered, place = sorted(values), share * (len(values) - 1)
    low = ordered[floor(place)]
    return low + (place - floor(place)) * (ordered[ceil(place)] - low)
