"""The figures of a set: pooled over all rounds, and as the mean of its requests.

A set is split where settings differ: what was decoded by another model or method is never pooled.
An interval holds the value of many more requests of this kind with a probability of 95 %. It
follows from the differences between requests, which are larger than those between rounds of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log2, sqrt
from statistics import fmean, stdev
from typing import NamedTuple, TypedDict

from specscope.traces.facts.requests import percentile
from specscope.traces.sets.members import SetMember

Z = 1.96
_T = (12.71, 4.30, 3.18, 2.78)
"""Student's t of 95 % for 1 to 4 degrees of freedom."""
FEW = 3
"""Requests from which on their differences give an interval."""
LEAST = 8
"""Rounds of a request that is named as the best or the worst, if some have as many."""
NAMED = 5
"""Best and worst requests."""
BINS = 12
"""Stretches of time."""
WIDE = 32
"""Ratio of the longest to the shortest prompt from which on bins span a factor of 4, not 2."""


class Mean(TypedDict):
    """A mean with its interval; null is unknown."""

    value: float | None
    low: float | None
    high: float | None


class SetPart(TypedDict):
    """The figures of some requests of a set."""

    name: str
    members: int
    requests: int
    """Those that drafted."""
    rounds: int
    length: Mean
    """Acceptance length: (accepted + rounds) / rounds, of all rounds."""
    mean: Mean
    """Mean of the requests' acceptance lengths."""
    rate: float | None
    """Accepted / drafted tokens, of all."""
    mean_rate: float | None
    speed: float | None
    """Tokens/s: all tokens / all seconds of decoding."""
    mean_speed: float | None


class One(TypedDict):
    """A request that is named."""

    run: str
    part: int | None
    name: str
    category: str
    rounds: int
    length: float


class SetView(TypedDict):
    """A set."""

    name: str
    noun: str
    setting: dict[str, str]
    members: int
    without: int
    """Requests without counts."""
    plain: int
    """Requests that drafted nothing."""
    repeated: int
    """Requests with the prompt or the name of an earlier one."""
    unfinished: int
    by_steps: bool
    """Whether rounds are the target's forwards, as verifications of drafts are not counted."""
    longest: tuple[int, int] | None
    """Least and most tokens of the requests' longest drafts."""
    whole: SetPart
    percentiles: dict[str, float]
    """p10, p50, p90 of the requests' acceptance lengths."""
    categories: list[SetPart]
    prompts: list[SetPart]
    times: list[SetPart]
    worst: list[One]
    best: list[One]


class Counted(NamedTuple):
    """A member with known counts; `n` rounds."""

    member: SetMember
    n: int
    accepted: int

    @property
    def length(self) -> float:
        return 1 + self.accepted / self.n


def split(members: Iterable[SetMember]) -> list[tuple[str, list[SetMember]]]:
    """Return the members by setting, each list with the name of what differs."""
    found: dict[tuple[tuple[str, str], ...], list[SetMember]] = {}
    for member in members:
        found.setdefault(member.setting, []).append(member)
    settings = [dict(setting) for setting in found]
    differing = [k for k in (settings[0] if settings else ()) if len({s[k] for s in settings}) > 1]
    shown = differing or ["method", "target"]
    names = [", ".join(filter(None, (s[k] for k in shown))) or f"no {shown[0]}" for s in settings]
    return list(zip(names, found.values(), strict=True))


def by_steps(members: Sequence[SetMember]) -> bool:
    """Return whether only the target's forwards are known of some that drafted."""
    return any(m.drafts is None and m.steps is not None for m in members)


def counted(members: Sequence[SetMember], *, steps: bool) -> list[Counted]:
    """Return the members with counts that have a round."""
    rounds = ((m, m.steps if steps else m.drafts) for m in members)
    return [Counted(m, n, m.accepted) for m, n in rounds if n and m.accepted is not None and m.drafted != 0]


def view_of(name: str, members: Sequence[SetMember]) -> SetView:
    """Return the figures of members of one setting; there is at least one."""
    steps = by_steps(members)
    rows = counted(members, steps=steps)
    lengths = sorted(row.length for row in rows)
    longest = [m.longest for m in members if m.longest]
    named = [m.same for m in members if m.same is not None]
    shares = {"p10": 0.1, "p50": 0.5, "p90": 0.9}
    worst, best = _named(rows)
    return {
        "name": name,
        "noun": members[0].noun,
        "setting": dict(members[0].setting),
        "members": len(members),
        "without": sum(m.accepted is None or (m.steps if steps else m.drafts) is None for m in members),
        "plain": sum(m.accepted is not None and 0 in (m.drafted, m.drafts) for m in members),
        "repeated": len(named) - len({*named}),
        "unfinished": sum(not m.done for m in members),
        "by_steps": steps,
        "longest": (min(longest), max(longest)) if longest else None,
        "whole": part_of("all", members, steps=steps),
        "percentiles": {k: percentile(lengths, at) or 0.0 for k, at in shares.items()} if rows else {},
        "categories": by_category(members, steps=steps),
        "prompts": by_prompt(members, steps=steps),
        "times": [part_of(name, some, steps=steps) for name, some in by_time(members)],
        "worst": worst,
        "best": best,
    }


def part_of(name: str, members: Sequence[SetMember], *, steps: bool) -> SetPart:
    rows = counted(members, steps=steps)
    drafted = [m for m in (row.member for row in rows) if m.drafted]
    timed = [m for m in members if m.tokens is not None and m.seconds]
    rates = [(m.accepted or 0) / m.drafted for m in drafted if m.drafted]
    known = len(drafted) == len(rows) and bool(rows)
    speeds = [(m.tokens or 0) / m.seconds for m in timed if m.seconds]
    return {
        "name": name,
        "members": len(members),
        "requests": len(rows),
        "rounds": sum(row.n for row in rows),
        "length": pooled(rows),
        "mean": _mean([row.length for row in rows]),
        "rate": sum(m.accepted or 0 for m in drafted) / sum(m.drafted or 0 for m in drafted)
        if known
        else None,
        "mean_rate": fmean(rates) if known else None,
        "speed": sum(m.tokens or 0 for m in timed) / sum(m.seconds or 0.0 for m in timed) if timed else None,
        "mean_speed": fmean(speeds) if speeds else None,
    }


def pooled(rows: Sequence[Counted]) -> Mean:
    """Return the acceptance length of all rounds, with its interval.

    Between requests: the deviation of a ratio of sums. It is not smaller than that of as many
    independent rounds; fewer than `FEW` requests have only the latter.
    """
    total = sum(row.n for row in rows)
    if not total:
        return {"value": None, "low": None, "high": None}
    rate = sum(row.accepted for row in rows) / total
    inside = _inside(rows, total)
    if len(rows) < FEW:
        half = None if inside is None or total < LEAST else t(total - 1) * inside
    else:
        apart = sum((row.accepted - rate * row.n) ** 2 for row in rows) * len(rows) / (len(rows) - 1)
        alike = total * total / sum(row.n * row.n for row in rows)
        half = max(t(max(1.0, alike - 1)) * sqrt(apart) / total, Z * (inside or 0.0))
    longest = [n for row in rows if (n := row.member.longest) is not None]
    most = 1.0 + max(longest) if len(longest) == len(rows) else None
    return _around(1 + rate, half, most)


def _inside(rows: Sequence[Counted], total: int) -> float | None:
    """Return the standard error by the rounds alone; None if their counts are not known.

    Rounds that were all alike might have differed by a token.
    """
    variance = 0.0
    for row in rows:
        if row.member.squares is None or row.n != row.member.drafts or total < 2:
            return None
        variance += row.member.squares - row.accepted * row.accepted / row.n
    return sqrt(max(1.0, variance) * total / max(1, total - len(rows))) / total


def _mean(values: Sequence[float]) -> Mean:
    if not values:
        return {"value": None, "low": None, "high": None}
    half = t(len(values) - 1) * stdev(values) / sqrt(len(values)) if len(values) >= FEW else None
    return _around(fmean(values), half)


def _around(value: float, half: float | None, most: float | None = None) -> Mean:
    """Return a figure with its interval, which is within 1 and `most`."""
    if half is None:
        return {"value": value, "low": None, "high": None}
    high = value + half if most is None else max(value, min(most, value + half))
    return {"value": value, "low": max(1.0, value - half), "high": high}


def t(freedom: float) -> float:
    """Return Student's t of 95 %: exact for few degrees of freedom, else an expansion in 1/n."""
    if freedom < 5:
        return _T[max(0, int(freedom) - 1)]
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


def by_category(members: Sequence[SetMember], *, steps: bool) -> list[SetPart]:
    found: dict[str, list[SetMember]] = {}
    for member in members:
        found.setdefault(member.category, []).append(member)
    if len(found) < 2 and "" in found:
        return []
    return [part_of(name or "without a category", some, steps=steps) for name, some in sorted(found.items())]


def by_prompt(members: Sequence[SetMember], *, steps: bool) -> list[SetPart]:
    """Return the members by the length of the prompt; empty if all lengths are in one bin."""
    known = [(m.prompt, m) for m in members if m.prompt]
    if not known:
        return []
    least, most = min(n for n, _ in known), max(n for n, _ in known)
    factor = 2 if most > WIDE * least else 1
    found: dict[int, list[SetMember]] = {}
    for n, member in known:
        found.setdefault(int(log2(n) / factor), []).append(member)
    if len(found) < 2:
        return []
    names = {at: f"{2 ** (factor * at):,} to {2 ** (factor * (at + 1)) - 1:,}" for at in found}
    return [part_of(names[at], found[at], steps=steps) for at in sorted(found)]


def by_time(members: Sequence[SetMember]) -> list[tuple[str, list[SetMember]]]:
    """Return the members of one clock by stretches of time; empty if they are of several clocks."""
    known = sorted(((m.start, m) for m in members if m.start is not None), key=lambda one: one[0])
    if len({m.clock for _, m in known}) != 1 or known[0][0] == known[-1][0]:
        return []
    first, last = known[0][0], known[-1][0]
    width = (last - first) / BINS
    found: dict[int, list[SetMember]] = {}
    for start, member in known:
        found.setdefault(min(BINS - 1, int((start - first) / width)), []).append(member)
    return [(_moment(some, last - first), some) for _, some in sorted(found.items())]


def _moment(members: Sequence[SetMember], span: float) -> str:
    """Return the time of the first of some members: its clock's, or seconds since the start."""
    first = members[0]
    if first.clock == "utc":
        from datetime import UTC, datetime

        return datetime.fromtimestamp(first.start or 0.0, UTC).strftime(
            "%d %b %H:%M" if span > 86400 else "%H:%M:%S"
        )
    return first.name if first.noun == "window" else f"{first.start:,.0f} s"


def _named(rows: Sequence[Counted]) -> tuple[list[One], list[One]]:
    """Return the requests with the least and with the most acceptance length."""
    ranked = [row for row in rows if row.n >= LEAST]
    ranked = sorted(ranked if len(ranked) > 1 else rows, key=lambda row: row.length)
    number = min(NAMED, len(ranked) // 2)
    return [*map(_one, ranked[:number])], [*map(_one, ranked[::-1][:number])]


def _one(row: Counted) -> One:
    m = row.member
    return {
        "run": m.run,
        "part": m.part,
        "name": m.name,
        "category": m.category,
        "rounds": row.n,
        "length": row.length,
    }
