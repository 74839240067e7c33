"""The best draft length of a run, from its own acceptance by place and its own times.

A round of K drafts brings 1 + r1 + r1 r2 + ... tokens, with a rate for each place, and takes K
drafter forwards and a verification of K + 1 rows: `advice.predicted`, scaled to the measured speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.drafting.pace import in_turns, seconds_at
from specscope.traces.facts.metrics import measure
from specscope.traces.judge.advice import limit, predicted
from specscope.traces.lengths.basis import GivenTimes, basis_of
from specscope.traces.lengths.spread import LengthSpread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specscope.engine.trace.trace import Trace
    from specscope.traces.facts.metrics import Metrics
    from specscope.traces.lengths.basis import Basis

LONGEST = 32
SHOWN = range(17)


class Length(NamedTuple):
    """What drafts of one length are estimated to bring; None is unknown."""

    length: int
    tokens: float
    """Of a round."""
    speedup: float | None
    """Over plain decoding."""
    tokens_per_second: float | None
    low: float | None
    """Ends of the interval, of the speed-up, or if that is unknown of the tokens per second."""
    high: float | None
    beyond: bool
    """Whether no draft reached its last place."""
    alike: bool
    """Whether the counts cannot tell it from the best one."""
    limit: float | None
    """Longest time of a drafter forward at which these drafts pay, in plain tokens."""

    @property
    def value(self) -> float | None:
        return self.tokens_per_second if self.speedup is None else self.speedup


class Best(NamedTuple):
    """The estimates of a run."""

    name: str
    """Of the setting that is the length."""
    unit: str
    """Of values and intervals: `×` plain decoding, `tokens/s`, or empty without times."""
    used: int
    measured: float | None
    """Of the run itself, in this unit; None with times that are not its own."""
    lengths: tuple[Length, ...]
    best: int | None
    """None without times, and of plain decoding alone whose time is unknown."""
    open_rows: str
    """What is taken for granted of verifications of other rows; empty if it is known."""
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Say which length is the best, and which others may be."""
        found = {one.length: one for one in self.lengths}
        if self.best is None and self.unit:
            return "The time of plain decoding is unknown; --plain RUN, --row or --widths tells it."
        if self.best is None:
            shown = any(one.limit is not None for one in self.lengths)
            free = f", {self.open_rows}" if self.open_rows else ""
            pays = f" Each length is faster than plain decoding below the c that is shown{free}." * shown
            return f"The time of a draft is unknown: give it with --c, in target forwards of one row.{pays}"
        best, drafts = found[self.best], [one for one in self.lengths if one.length and one.value is not None]
        others = [one.length for one in self.lengths if one.alike and one is not best]
        same = f"; {_listed(sorted((best.length, *others)))} cannot be told apart" if others else ""
        if best.length == 0:
            next_one = max(drafts, key=lambda one: one.value or 0.0, default=None)
            beside = (
                f", {self.name} {next_one.length} is {range_text(next_one, self.unit)}" if next_one else ""
            )
            return f"{self.name} 0 is best: no drafts{beside}{same}."
        far = ", at places that no draft reached" if best.beyond else ""
        free = f", {self.open_rows}" if self.open_rows else ""
        return f"{self.name} {best.length} is best: {range_text(best, self.unit)}{far}{free}{same}."

    def to_dict(self) -> dict[str, Any]:
        rows = [one._asdict() for one in self.lengths]
        return {**self._asdict(), "lengths": rows, "notes": list(self.notes), "sentence": self.sentence}


def range_text(one: Length, unit: str) -> str:
    """Return a value with its interval, such as `1.27 times plain decoding (1.20 to 1.33)`."""
    value = "" if one.value is None else f"{one.value:.2f}" if unit == "×" else f"{one.value:.1f}"
    return f"{value} {'times plain decoding' if unit == '×' else unit} ({interval_text(one, unit)})"


def interval_text(one: Length, unit: str) -> str:
    """Return an interval without its unit; one without an end begins with `from`."""
    digits = 2 if unit == "×" else 1
    low, high = ("" if end is None else f"{end:.{digits}f}" for end in (one.low, one.high))
    return f"{low} to {high}" if high else f"from {low}" if low else ""


def best_length(
    trace: Trace,
    plain: Trace | None = None,
    lengths: Sequence[int] = SHOWN,
    given: GivenTimes | None = None,
    metrics: Metrics | None = None,
) -> Best:
    """Return what drafts of each length would bring; length 0 is plain decoding.

    Args:
        trace: A run whose drafts have one length, and are drafted and verified in turns.
        plain: Plain decoding under the same conditions.
        lengths: At most `LONGEST`.
        given: Times that the run does not have, or that replace its own.
        metrics: Those of the run, if they are known.

    Raises:
        UsageError: No formula describes the run, or a count or a time is missing.
    """
    metrics, given = metrics or measure(trace), given or GivenTimes()
    return _estimated(basis_of(trace, metrics, plain, given), lengths)


def _estimated(basis: Basis, lengths: Sequence[int]) -> Best:
    rates, spread = basis.rates, LengthSpread(basis.levels, basis.rates.drafting, max(lengths))
    unit = ("×" if rates.known else "tokens/s") if basis.timed else ""
    one = 1.0 if rates.known else 1 / rates.plain
    scale = basis.measured / predicted("turns", rates, basis.used) if basis.measured else 1.0
    speeds = {k: scale * predicted("turns", rates, k) if k else 1.0 for k in lengths}
    told = [k for k in lengths if k or rates.known]
    best = max(told, key=lambda k: (speeds[k], -k)) if unit and told else None
    share = rates.drafting
    tokens = {k: 1 - share + share * in_turns(rates.probe, [1] * k).tokens for k in {*lengths, basis.used}}
    output = basis.rates.probe.rounds / share * tokens[basis.used]
    found = list[Length]()
    for k in lengths:
        factor, known = speeds[k] / tokens[k], bool(unit) and k in told
        low, high = (factor * end * one for end in spread.interval(k, tokens[k], output / tokens[k]))
        found.append(
            Length(
                length=k,
                tokens=tokens[k],
                speedup=speeds[k] if known and rates.known else None,
                tokens_per_second=speeds[k] / rates.plain if known and basis.seconds else None,
                low=low if unit else None,
                high=high if known else None,
                beyond=k > len(basis.levels),
                alike=best is not None
                and known
                and spread.alike(k, best, factor, speeds[best] / tokens[best]),
                limit=limit(rates, k) if k and rates.known else None,
            )
        )
    measured = None if basis.measured is None else basis.measured * one
    verify = rates.probe.verify
    unknown = not rates.known if basis.timed else seconds_at(verify, 1) == seconds_at(verify, 2)
    free = "if further rows cost no time" if unknown else ""
    return Best(basis.name, unit, basis.used, measured, tuple(found), best, free, _notes(basis, lengths))


def _notes(basis: Basis, lengths: Sequence[int]) -> tuple[str, ...]:
    """Return what the estimates stand on, what is taken for granted and what is extrapolated."""
    rates, places, most = basis.rates, len(basis.levels), max(lengths)
    found = [*basis.notes]
    if basis.timed:
        found.append(
            f"From {basis.rates.probe.rounds:,} drafts; the interval holds 95 % of runs with as many tokens, by these "
            "counts alone: rounds are taken as independent, times as measured."
        )
    if most > places:
        ends = f": the interval goes from no accepted token there to the rate of place {places}" * basis.timed
        found.append(f"No draft reached place {places + 1}{ends}.")
    if rates.drafting < 1:
        found.append(
            f"{100 * rates.drafting:.0f} % of the rounds verified a draft, which is taken for every length."
        )
    if basis.timed and not rates.known:
        found.append(
            "The time of a forward of one row is unknown, and so is whether drafts pay. Forwards of other rows than the "
            "known ones are taken to last as long: shorter drafts may be faster, longer ones slower. Plain decoding "
            "(--plain RUN), --row or --widths with 1 row tells it."
        )
    return tuple(found)


def _listed(lengths: Sequence[int]) -> str:
    """Return numbers as text: `1 to 3 and 6`."""
    runs = list[list[int]]()
    for n in lengths:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
