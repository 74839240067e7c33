"""What would change an answer: break-even points by the closed forms, scaled to the runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.methods import BASELINE
from specscope.engine.simulate.roofline import WEIGHT_BITS
from specscope.traces.advise.acceptance import LEAST_RATE, MOST_RATE
from specscope.traces.advise.answer import Answer, estimates, plain_estimate
from specscope.traces.advise.option import Option
from specscope.traces.advise.others import KINDS, kind_of
from specscope.traces.advise.places import PLAIN, Estimate, titled
from specscope.traces.advise.question import MOST_CONTEXT, WIDTHS, Question

SMALLER = ("fp8", "int4")
"""Dtypes that a hint tries."""
LITTLE = 0.05
"""Less of a change in speed is none."""
MOST_SUMMED = 4096
"""Sequences for which the sums of memory are made, more than a question may have."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where the answer changes."""

    name: str
    """What changes: acceptance, context, batch, dtype or cards."""
    value: float | str
    text: str

    def facts(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "text": self.text}


def changes(answer: Answer, batch: int) -> list[BreakEven]:
    """Return what would change the answer, by the closed forms and the sums of memory."""
    best, question = answer.best(batch), answer.question
    found = list[BreakEven]()
    if best.key != BASELINE:
        found += _acceptance(answer, best)
        found += _context(question, best)
        found += _batch(answer, best)
    found += _dtypes(answer, best)
    found += _cards(answer, best)
    return found


def _same(question: Question, option: Option, batch: int) -> Estimate:
    return Estimate(question, option.way, batch)


def _acceptance(answer: Answer, best: Option) -> Iterator[BreakEven]:
    """Yield the rates of its drafts at which plain decoding, and another method, become as fast."""
    question, kind, least = answer.question, kind_of(best.way.entrant), LEAST_RATE
    usual = question.about(kind).rate
    whose = f" of {KINDS[kind].drafts}" if kind else " of the drafter" if question.others else ""

    def ahead(rate: float, other: Option) -> float:
        moved = question.with_rate(rate, kind)
        mine, others = (_closed(moved, o) / _closed(question, o) * o.tokens_per_second for o in (best, other))
        return mine - others

    plain, *others = sorted(answer.at(best.batch), key=lambda o: o.key != BASELINE)
    if (rate := _crossing(partial(ahead, other=plain), least, usual)) is not None:
        least = rate
        text = f"below an acceptance rate{whose} of {rate:.2f} plain decoding is as fast"
        yield BreakEven("acceptance", rate, text)
    rivals = {o.title: o for o in reversed(others) if o.title != best.title}
    for other in [*reversed(rivals.values())][:2]:
        over = partial(ahead, other=other)
        for low, high, word in ((usual, MOST_RATE, "above"), (least, usual, "below")):
            if (rate := _crossing(over, low, high)) is not None:
                text = f"{word} an acceptance rate{whose} of {rate:.2f} {other.title} is as fast"
                yield BreakEven("acceptance", rate, text)


def _closed(question: Question, option: Option) -> float:
    return _same(question, option, option.batch).tokens_per_second


def _crossing(value: Callable[[float], float], low: float, high: float) -> float | None:
    """Return where a function changes its sign between two places; None if both signs are equal."""
    first = value(low) > 0
    if first == (value(high) > 0):
        return None
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if (value(middle) > 0) == first else (low, middle)
    return round((low + high) / 2, 2)


def _most(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number that fits; `least` does."""
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least


def _context(question: Question, best: Option) -> Iterator[BreakEven]:
    def fits(context: int) -> bool:
        return not _same(replace(question, context=context), best, best.batch).missing

    most = _most(fits, question.context, MOST_CONTEXT)
    if most < MOST_CONTEXT:
        yield BreakEven("context", most, f"beyond a context of {most:,} tokens it does not fit there")


def _batch(answer: Answer, best: Option) -> Iterator[BreakEven]:
    """Yield a batch size at which the method does not pay, or the largest that fits."""
    question = answer.question
    own = replace(question, methods=(best.key,))

    def fits(batch: int) -> bool:
        return not _same(question, best, batch).missing

    most = _most(fits, best.batch, MOST_SUMMED)
    for batch in (2**i for i in range(MOST_SUMMED.bit_length())):
        if not best.batch < batch <= most:
            continue
        able = [one for one in estimates(own, batch) if titled(one.way.entrant) == best.title]
        if not able:
            text = f"it cannot serve more than {_sequences(best.batch)} here: each needs an engine of its own"
            yield BreakEven("batch", best.batch, text)
            return
        ratio = best.tokens_per_second / _closed(question, best)
        plain = answer.scales[PLAIN.short, best.batch] * plain_estimate(question, batch).tokens_per_second
        if ratio * able[0].tokens_per_second <= plain:
            yield BreakEven("batch", batch, f"with {batch} sequences plain decoding is as fast")
            return
    if most < MOST_SUMMED:
        yield BreakEven("batch", most, f"more than {_sequences(most)} do not fit there")


def _sequences(count: int) -> str:
    return "one sequence" if count == 1 else f"{count} sequences"


def _dtypes(answer: Answer, best: Option) -> Iterator[BreakEven]:
    bits = WEIGHT_BITS[answer.question.dtype]
    for dtype in (name for name in SMALLER if WEIGHT_BITS[name] < bits):
        if text := _otherwise(answer, replace(answer.question, dtype=dtype, drafter_dtype=""), best):
            yield BreakEven("dtype", dtype, f"in {dtype}: {text}")


def _cards(answer: Answer, best: Option) -> Iterator[BreakEven]:
    question = answer.question
    if question.count * 2 <= WIDTHS[-1]:
        more = replace(question, count=2 * question.count)
        if text := _otherwise(answer, more, best):
            yield BreakEven("cards", more.count, f"on {more.count} × {question.card}: {text}")


def _otherwise(answer: Answer, question: Question, best: Option) -> str:
    """Return the best method of another question by the closed form, and how fast it is.

    The closed forms are scaled to the runs, see `Answer.scale`.
    """
    try:
        plain = plain_estimate(question, best.batch)
    except (OutOfMemory, UsageError):
        return ""
    firsts = {one.way.entrant.short: one for one in reversed(estimates(question, best.batch))}
    found, speed = plain, answer.scale(plain) * plain.tokens_per_second
    usual = speed
    for one in sorted(firsts.values(), key=lambda one: -one.tokens_per_second):
        if (other := answer.scale(one) * one.tokens_per_second) > speed:
            found, speed = one, other
    same = (titled(found.way.entrant), found.way.words()) == (best.title, best.way.words())
    if same and abs(speed / best.tokens_per_second - 1) < LITTLE:
        return ""
    now = f"{speed / best.tokens_per_second:.1f} times as fast as this answer"
    if found is plain:
        return f"plain decoding, with {plain.way.words()}, {now}"
    title = titled(found.way.entrant)
    return f"{title}, with {found.way.words()}: about {speed / usual:.1f} times plain decoding there, {now}"
