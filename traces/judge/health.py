"""The health of a run: loops in its text, stretches of one outcome, drift, contradicted rules.

Users of serving engines find garbled output and loops by these signs. Each has a bound that a sound
run passes with a probability below `ALPHA`, if its drafts are tested independently with one
acceptance rate; texts are not that even, so a difference of rates must also be large. Pure
functions on a trace.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from math import lgamma, log
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from specscope.traces.facts.comparable import drafts
from specscope.traces.facts.counted import total, whole_windows
from specscope.traces.facts.imported import NO_TOKEN
from specscope.traces.facts.joined import joined
from specscope.traces.facts.places import decided_levels
from specscope.traces.judge.audit import ALPHA, audit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from specscope.engine.trace.events import Window
    from specscope.engine.trace.trace import Trace

DIFFERENCE = 0.2
"""Least difference of two acceptance rates."""
LONG = 16
"""Least tests of a stretch with one outcome."""
PART = 32
"""Least tests on either side of a change; below, shares are far from normal."""
SCARCE = 0.02
"""Accepted tokens per draft below which drafting brings nothing."""
LOOP_TOKENS = 48
LOOP_TIMES = 4
"""Least length of a loop, and least number of times that its tokens occur in a row."""
PERIOD = 128
"""Most tokens in one repetition of a loop."""
_GRAM = 16
"""Tokens by which a repetition is found; fewer than a loop repeats at least."""


class LevelTest(NamedTuple):
    """The decision about one level of a draft."""

    step: int
    token: int
    """Number of the token in the output, from 1."""
    accepted: bool


class Loop(NamedTuple):
    """The same tokens again and again; `first` and `last` are numbers of tokens, from 1."""

    period: int
    first: int
    last: int

    @property
    def times(self) -> int:
        return (self.last - self.first + 1) // self.period


class Stretch(NamedTuple):
    """Tests in a row with one outcome, [start, end) of a sequence's."""

    start: int
    end: int
    accepted: bool
    rest: float | None
    """Share of this outcome among the sequence's other tests; None without any."""
    chance: float
    """Natural logarithm of the bound of its probability."""


class RateChange(NamedTuple):
    """A change of the acceptance rate at a test of a sequence."""

    at: int
    before: float
    after: float
    z: float


Note = tuple[float, str]
"""A sentence, and how much it weighs among those of the same kind."""


def health(trace: Trace, audited: str | None = None) -> str:
    """Return what is suspect in a run, in at most two sentences; empty if nothing is.

    A loop explains acceptances and changes, so they are then left out. `audited` is the sentence of
    the run's audit, if it is known.
    """
    if trace.windows:
        return of_windows(whole_windows(trace.windows))
    texts = trace.outputs()
    tests = level_tests(trace)
    size = sum(map(len, tests.values()))
    loops = {i: _of_loop(found, drafts(trace)) for i, ids in enumerate(texts) if (found := loop(ids))}
    parts = {i: _parted(rows, size) for i, rows in tests.items()}
    stretches = {i: found for i, (found, _) in parts.items() if found}
    rejections = {i: _of_stretch(one, tests[i]) for i, one in stretches.items() if not one.accepted}
    acceptances = {i: _of_stretch(one, tests[i]) for i, one in stretches.items() if one.accepted}
    changes = {i: _of_change(found, tests[i]) for i, (_, found) in parts.items() if found}
    notes = (loops, rejections) if loops else (rejections, changes, acceptances)
    if audited is None:
        audited = found.sentence if (found := audit(trace)) else ""
    sentences = (audited, *(_worst(trace, n) for n in notes))
    return " ".join([one for one in sentences if one][:2])


def of_windows(windows: Sequence[Window]) -> str:
    """Return that no draft of some windows in a row, or of all, was accepted; else nothing.

    The probability is that of as many rejected first tokens as they had drafts, if these are
    accepted as often as all drafted tokens of the other windows.
    """
    found: list[tuple[float, str]] = []
    for none, rows in groupby(windows, lambda one: one.accepted == 0 and one.drafts != 0):
        part = list(rows)
        if none and (note := _of_nothing(part, [one for one in windows if one not in part])):
            found.append(note)
    kept, drafts = total(windows, "accepted"), total(windows, "drafts")
    few = kept is not None and drafts is not None and drafts >= PART and kept < SCARCE * drafts
    if few and not found:
        found = [
            (
                0.0,
                f"Of {drafts} drafts, {kept} token{'s' * (kept != 1)} in all were accepted: they bring nothing.",
            )
        ]
    return max(found, default=(0.0, ""))[1]


def _of_nothing(part: Sequence[Window], others: Sequence[Window]) -> tuple[float, str] | None:
    drafted, drafts = total(part, "drafted"), total(part, "drafts")
    kept, all_drafted = total(others, "accepted"), total(others, "drafted")
    rate = kept / all_drafted if kept is not None and all_drafted else DIFFERENCE
    if kept is not None and all_drafted is None and (known := total(others, "drafts")):
        rate = min(rate, kept / known)
    if drafts is None or drafts < LONG or rate >= 1 or drafts * log(1 - rate) > log(ALPHA):
        return None
    what = f"of {drafted} drafted tokens" if drafted else f"tokens of {drafts} drafts"
    first, last = part[0].label, part[-1].label
    before = next((one.label for one in reversed(others) if one.end <= part[0].start and one.label), first)
    where = f"From {before} to {last}" if first and others else "In all windows" if not others else "In some"
    rest = f"; of those of the other windows, {100 * rate:.0f} % were" if others and all_drafted else ""
    return float(drafts), f"{where}, 0 {what} were accepted{rest}."


def _parted(tests: Sequence[LevelTest], size: int) -> tuple[Stretch | None, RateChange | None]:
    """Return the stretch and the change of a sequence, without the one that the other explains.

    A change that the other tests show without the stretch makes stretches likely on one of its
    sides: the stretch must be improbable there. Acceptances that are a side of it are the change.
    """
    found, shift = stretch(tests, size), change(tests, size)
    if found is None or shift is None:
        return found, shift
    if change([*tests[: found.start], *tests[found.end :]], size) is None:
        side = found.accepted and (found.start < PART or len(tests) - found.end < PART)
        return (None, shift) if side else (found, None)
    sides = ((0, tests[: shift.at]), (shift.at, tests[shift.at :]))
    inside = [
        one._replace(start=one.start + begin, end=one.end + begin)
        for begin, side in sides
        if (one := stretch(side, size))
    ]
    return min(inside, key=lambda one: one.chance, default=None), shift


def _worst(trace: Trace, notes: Mapping[int, Note]) -> str:
    """Return the weightiest of the notes of sequences; empty if there is none."""
    if not notes:
        return ""
    sequence = max(notes, key=lambda i: notes[i][0])
    others = len(notes) - 1
    more = f" Also in {others} other sequence{'s' * (others > 1)}." if others else ""
    where = f"Sequence {sequence + 1}: " if len(trace.header.prompt_ids) > 1 else ""
    return f"{where}{notes[sequence][1]}{more}"


def _of_loop(found: Loop, drafted: bool) -> Note:
    some = f"{found.period} token{'s' * (found.period > 1)}"
    text = f"The text repeats {some} {found.times} times, tokens {found.first} to {found.last}"
    easy = "; a loop is easy to draft, so acceptance and speed are not those of other text"
    return found.last - found.first, f"{text}{easy if drafted else ''}."


def _of_stretch(found: Stretch, tests: Sequence[LevelTest]) -> Note:
    first, last = tests[found.start], tests[found.end - 1]
    where = f"tokens {first.token} to {last.token} (steps {first.step} to {last.step})"
    outcome = "accepted" if found.accepted else "rejected"
    others = "" if found.rest is None else f"; of the other tests, {100 * found.rest:.0f} % were"
    text = f"All {found.end - found.start} drafts tested in a row at {where} were {outcome}{others}."
    return -found.chance, text


def _of_change(found: RateChange, tests: Sequence[LevelTest]) -> Note:
    verb, at = "rose" if found.after > found.before else "fell", tests[found.at]
    rates = f"from {100 * found.before:.0f} % to {100 * found.after:.0f} %"
    text = f"The acceptance of tested drafts {verb} {rates} at token {at.token} (step {at.step})."
    return abs(found.z), text


def level_tests(trace: Trace) -> dict[int, list[LevelTest]]:
    """Return the tests of each sequence in order, of drafts that a model made.

    Copied drafts are right or wrong as a whole, for as long as the text follows its source.
    """
    tests: dict[int, list[LevelTest]] = {}
    for (sequence, step), one in joined(trace).items():
        if one.decisions and not one.copied and not one.pooled:
            before = one.start - len(trace.header.prompt_ids[sequence])
            rows = [LevelTest(step, before + level, accepted) for level, accepted in decided_levels(one)]
            tests.setdefault(sequence, []).extend(rows)
    return {i: sorted(rows) for i, rows in tests.items()}


def loop(ids: Sequence[int]) -> Loop | None:
    """Return the longest loop of a text, None without one or without the ids of all tokens."""
    found: list[Loop] = []
    for period in [] if NO_TOKEN in ids else sorted(_periods(ids)):
        at = 0
        for same, rows in groupby(a == b for a, b in zip(ids, ids[period:], strict=False)):
            length = len(list(rows))
            found += [Loop(period, at + 1, at + length + period)] if same else []
            at += length
    long = [one for one in found if one.last - one.first + 1 >= max(LOOP_TOKENS, LOOP_TIMES * one.period)]
    return max(long, key=lambda one: one.last - one.first, default=None)


def _periods(ids: Sequence[int]) -> set[int]:
    """Return the distances, up to `PERIOD`, at which some `_GRAM` tokens occur again."""
    last: dict[tuple[int, ...], int] = {}
    periods: set[int] = set()
    for i in range(len(ids) - _GRAM + 1):
        gram = tuple(ids[i : i + _GRAM])
        periods.add(i - last.get(gram, i))
        last[gram] = i
    return {period for period in periods if 0 < period <= PERIOD}


def stretch(tests: Sequence[LevelTest], size: int) -> Stretch | None:
    """Return the least probable stretch of one outcome; None if each is probable or short.

    The bound of a stretch is `size`, the tests of the run, times its probability after the
    sequence's other tests: with s of n tests alike, the next is alike with (s + 1) / (n + 2)
    (Laplace's rule of succession), and so on. Where nothing else was tested, rejections are judged
    as those of a drafter that is right in a share of `DIFFERENCE`, and acceptances are no fault: a
    drafter may be always right.
    """
    found: list[Stretch] = []
    counts, end = Counter(test.accepted for test in tests), 0
    for accepted, rows in groupby(test.accepted for test in tests):
        start, end = end, end + len(list(rows))
        length, others = end - start, len(tests) - (end - start)
        same = counts[accepted] - length
        rest = same / others if others else 1 - DIFFERENCE
        if length >= LONG and rest <= 1 - DIFFERENCE and (others or not accepted):
            alike = _succession(same, others, length) if others else length * log(rest)
            found.append(Stretch(start, end, accepted, rest if others else None, log(size) + alike))
    least = min(found, key=lambda one: one.chance, default=None)
    return least if least and least.chance < log(ALPHA) else None


def _succession(same: int, others: int, length: int) -> float:
    """Return the logarithm of the product of (same + 1 + i) / (others + 2 + i), i < length."""
    return lgamma(same + 1 + length) - lgamma(same + 1) - lgamma(others + 2 + length) + lgamma(others + 2)


def change(tests: Sequence[LevelTest], size: int) -> RateChange | None:
    """Return the sharpest change of the acceptance rate; None if it is small or probable.

    Every split is tried: the bound of z is that of `ALPHA` over both signs and `size` splits.
    """
    n, total, before = len(tests), sum(t.accepted for t in tests), 0
    sharpest = RateChange(0, 0.0, 0.0, 0.0)
    variance = total * (n - total) / max(1, n) ** 2
    for k in range(1, n - PART + 1 if variance else 0):
        before += tests[k - 1].accepted
        if k >= PART:
            rates = before / k, (total - before) / (n - k)
            z = (rates[1] - rates[0]) / (variance * n / (k * (n - k))) ** 0.5
            sharpest = max(sharpest, RateChange(k, *rates, z), key=lambda one: abs(one.z))
    bound = -NormalDist().inv_cdf(ALPHA / (2 * max(1, size)))
    large = abs(sharpest.after - sharpest.before) >= DIFFERENCE
    return sharpest if large and abs(sharpest.z) > bound else None
