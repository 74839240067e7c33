"""What the estimates of a run's draft lengths are made of: acceptance by place, and times.

They come from the spans of a run, or from the counts that an engine printed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from specscope.engine.drafting.pace import Probe, seconds_at
from specscope.engine.errors import UsageError
from specscope.engine.methods import METHODS
from specscope.engine.trace.recorder import LAYERS
from specscope.traces.facts import counted, waiting
from specscope.traces.facts.comparable import batch_size
from specscope.traces.facts.imported import is_foreign, origin
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import has_trees, level_rate
from specscope.traces.facts.rates import ALIKE, OVERLAP, RunRates, alike, by_level, rates_of
from specscope.traces.judge.advice import formula_of, kind_of

if TYPE_CHECKING:
    from specscope.engine.drafting.pace import Curve
    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics
    from specscope.traces.facts.places import LevelRate

FEWEST = 8
"""Drafts from which on their places have rates."""
_FAR = 1024
"""Further rows of the widest verification."""
_AT_ONCE = "{}: drafter and target work at the same time, so no sum of their times holds"


class GivenTimes(NamedTuple):
    """Times that a run does not have."""

    c: float | None = None
    """Time of a drafter forward, in target forwards of one row."""
    row: float | None = None
    """Time of each further row of a verification, in the same unit."""
    widths: Curve = ()
    """Rows -> seconds of a target forward."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What the estimates of a run are made of."""

    name: str
    used: int
    levels: tuple[LevelRate, ...]
    rates: RunRates
    seconds: bool
    """Whether the times are seconds: else they are forwards of the target."""
    timed: bool
    """Whether the time of a draft is known."""
    measured: float | None
    """Speed of the run, in plain tokens."""
    notes: tuple[str, ...] = ()


def basis_of(trace: Trace, metrics: Metrics, plain: Trace | None, given: GivenTimes) -> Basis:
    """Return the basis of a run, with the times that are given.

    UsageError if no formula describes the run, or a count or a time is missing.
    """
    counts = bool(trace.windows) or is_foreign(trace.header) or not waiting.divided(trace)
    basis = _of_counts(trace, metrics, plain, given) if counts else _of_spans(trace, metrics, plain)
    return _with_given(basis, given)


def _of_spans(trace: Trace, metrics: Metrics, plain: Trace | None) -> Basis:
    """Return the basis of a run with times of its forwards."""
    what, name = f"run {trace.header.run_id}", _length_of(trace)
    if waiting.overlap(trace)["both"] >= OVERLAP:
        raise UsageError(_AT_ONCE.format(what))
    _check_alike(what, sum(r.drafted > 0 for r in trace.rounds), *alike(trace))
    rates = rates_of(trace, metrics, plain)
    if rates is None:
        raise UsageError(f"{what} does not tell the times of its target's forwards and their rows")
    drafts, speed = bool(rates.draft), metrics.tokens_per_second
    notes = list[str]()
    if rates.whole:
        notes.append("Only whole drafts were timed, so the time of a draft of another length is unknown.")
        rates = replace(rates, probe=replace(rates.probe, later=rates.probe.first))
    elif drafts and not rates.probe.later:
        notes.append("A whole draft takes one forward, which is taken to last as long for every length.")
    if layers := trace.header.config.get(LAYERS):
        notes.append(f"No draft is longer than {layers}: each layer drafts one token.")
    method = METHODS.get(trace.header.method)
    timed = not rates.whole and (
        drafts or not ("drafter" in method.uses if method else trace.header.drafter_path)
    )
    used, measured = alike(trace)[0], speed * rates.plain if speed else None
    return Basis(name, used, metrics.per_level, rates, True, timed, measured, tuple(notes))


def _length_of(trace: Trace) -> str:
    """Return the name of the draft length. UsageError if no formula describes the run."""
    header, method = trace.header, METHODS.get(trace.header.method)
    what, used = f"run {header.run_id}", header.config
    again = f"; --method {header.method} replays it with each value" if method else ""
    if not any(r.drafted for r in trace.rounds):
        raise UsageError(f"{what} verified no draft: nothing tells how many would be accepted")
    if (batch := batch_size(trace)) > 1:
        raise UsageError(
            f"{what} decodes {batch} sequences at once, and a round lasts as long as its widest{again}"
        )
    if has_trees(trace.decisions):
        raise UsageError(f"{what} drafts trees, whose places have other rates than those of chains{again}")
    if method is None:
        return "gamma"
    kind = kind_of(method.layout(method.configure(used)), {s.role for s in method.settings()})
    if kind not in ("turns", None):
        raise UsageError(_AT_ONCE.format(f"{what} of {method.key}") + again)
    if formula_of(method, used) is None:
        raise UsageError(
            f"{what}: drafts of {method.key} with these settings have no fixed length, or more is done beside them{again}"
        )
    return method.length


def _check_alike(what: str, drafts: int, used: int, share: float) -> None:
    if drafts < FEWEST:
        raise UsageError(
            f"{what} has {drafts} draft{'s' * (drafts > 1)}; from {FEWEST} on their places have rates"
        )
    if share < ALIKE:
        raise UsageError(
            f"{what} has drafts of different lengths, {100 * share:.0f} % of them {used} tokens long: a draft that "
            "ends early is no chance, so places have no rates for drafts of another length"
        )


class _Counts(NamedTuple):
    """What a run's counts tell."""

    used: int
    alike: float | None
    """Share of the drafts that are as long; None if their length is unknown."""
    drafts: int
    share: float
    """Of the rounds that verified a draft."""
    draft: float = 0.0
    """Seconds of a drafted token; 0 if unknown."""
    step: float = 0.0
    """Seconds of a round without its draft."""


def _counts_of(trace: Trace) -> _Counts:
    found, whole = origin(trace.header), counted.whole_windows(trace.windows)
    if not whole and found and found.counts:
        return _Counts(found.counts.gamma or 0, 1.0, found.counts.steps, 1.0)
    if not whole:
        drafts = sum(r.drafted > 0 for r in trace.rounds)
        return _Counts(*alike(trace), drafts, drafts / max(1, len(trace.rounds)))
    names = ("steps", "drafts", "drafted", "busy", "drafting")
    steps, drafts, drafted, busy, drafting = (counted.total(whole, name) for name in names)
    used = len(counted.places(whole))
    whole_share = None if drafted is None or not drafts or not used else drafted / (drafts * used)
    share = min(1.0, drafts / steps) if drafts and steps else 1.0
    if not drafted or not steps or drafting is None or busy is None or busy <= drafting:
        return _Counts(used, whole_share, drafts or 0, share)
    times = (drafting / drafted / 1e9, (busy - drafting) / steps / 1e9)
    return _Counts(used, whole_share, drafts or 0, share, *times)


def _of_counts(trace: Trace, metrics: Metrics, plain: Trace | None, given: GivenTimes) -> Basis:
    """Return the basis of a run that tells counts, and perhaps times of drafts and of decoding."""
    counts, levels = _counts_of(trace), metrics.per_level
    what, rate = f"run {trace.header.run_id}", level_rate(levels)
    if metrics.drafted == 0 and not (metrics.accepted or counts.drafts):
        raise UsageError(f"{what} verified no draft: nothing tells how many would be accepted")
    if rate is None or not counts.drafts or not counts.used:
        raise UsageError(
            f"{what} does not tell the accepted drafts by place, from which those of other lengths follow: take a log "
            "or counters with rates per position"
        )
    _check_alike(what, counts.drafts, counts.used, 1.0 if counts.alike is None else counts.alike)
    notes = () if counts.alike is not None else (f"The draft length is unknown: {counts.used} is assumed.",)
    base, speed = measure(plain).tokens_per_second if plain else None, metrics.tokens_per_second
    wide, first, more, draft = counts.used * counts.share, 1.0, 0.0, 0.0
    if counts.draft:
        first, draft = 1 / base if base else counts.step, counts.draft
        more = (counts.step - first) / wide
    elif base and speed:
        tokens = metrics.tokens_per_target_forward or 1.0
        first = 1 / base
        more = (tokens / speed - first) / wide - (given.c or 0.0) * first
    line = ((1, first), (1 + _FAR, first + _FAR * max(0.0, more)))
    probe = Probe(line, ((1, draft),), ((1, draft),), 0.0, by_level(levels, rate), (), counts.drafts)
    timed = bool(counts.draft)
    rates = RunRates(probe, (1.0,) * len(levels), rate, counts.share, first, bool(base) or not timed)
    seconds = timed or bool(base and speed)
    return Basis(
        "gamma",
        counts.used,
        levels,
        rates,
        seconds,
        timed,
        speed * first if speed and seconds else None,
        notes,
    )


def _with_given(basis: Basis, given: GivenTimes) -> Basis:
    """Return the basis with the times that are given."""
    if given == GivenTimes():
        return basis
    rates, probe, known = basis.rates, basis.rates.probe, basis.rates.known
    verify = probe.verify
    if given.widths:
        verify, known = _extended(given.widths), given.widths[0][0] == 1
    first = seconds_at(verify, 1)
    if given.row is not None:
        first = first if known else seconds_at(verify, 1 + basis.used) / (1 + given.row * basis.used)
        verify = ((1, first), (1 + _FAR, first * (1 + _FAR * given.row)))
    if given.c is not None:
        draft = ((1, given.c * first),)
        probe = replace(probe, first=draft, later=draft if probe.later else ())
    plain, row = first + probe.outside, given.row is not None
    other = given.widths or (row and known) or (given.c is not None and basis.timed)
    new = replace(rates, probe=replace(probe, verify=verify), plain=plain, known=known or row)
    return replace(
        basis,
        rates=new,
        seconds=basis.seconds or bool(given.widths),
        timed=basis.timed or given.c is not None,
        measured=None if other or basis.measured is None else basis.measured * plain / rates.plain,
    )


def _extended(widths: Curve) -> Curve:
    """Return measured widths with the line of the last two for wider forwards."""
    (rows, last), more = widths[-1], 0.0
    if len(widths) > 1:
        (before, lower) = widths[-2]
        more = max(0.0, (last - lower) / (rows - before))
    return (*widths, (rows + _FAR, last + _FAR * more))
