"""The answer in words: the best method with its reason, and what would change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.methods import BASELINE
from specscope.engine.simulate.shapes import data
from specscope.traces.advise.answer import RATIO_ERROR, Answer, Option, estimates, plain_estimate
from specscope.traces.advise.places import Estimate
from specscope.traces.advise.question import LEAST_RATE, MOST_CONTEXT, MOST_RATE, Question

SMALLER = ("fp8", "int4")
"""Dtypes that a hint tries."""
EQUAL = 0.03
"""A smaller lead is none."""
_PART = {
    "acceptance": "the acceptance rate",
    "times": "the computed times",
    "drafts": "the luck of the drafts",
}


def headline(answer: Answer, batch: int) -> str:
    """Return the answer for a batch size in one sentence, with its range and its reason."""
    best, question = answer.best(batch), answer.question
    at = f"At batch {batch}" if len(question.batches) > 1 or batch > 1 else "With one sequence"
    if best.key == BASELINE:
        return f"{at}, decode plainly, with {best.way.words()}: {_why_plain(answer, batch)}."
    reason = _reason(answer, best)
    return (
        f"{at}, {best.title} is the fastest: {best.speed} times plain decoding, with {best.way.words()}"
        f"{f', because {reason}' if reason else ''}."
    )


def notes(answer: Answer, batch: int) -> Iterator[str]:
    """Yield what the headline leaves out: rivals, and what the range is made of."""
    best, *others = answer.at(batch)
    if best.key == BASELINE:
        return
    rivals = [o for o in others if o.speed.high > best.speed.low and o.key not in (best.key, BASELINE)]
    names = list(dict.fromkeys(o.title for o in rivals))
    if names:
        yield f"Their ranges overlap with it: {', '.join(names)}."
    if best.speed.low < 1:
        yield "Its range begins below 1: it may not pay."
    part = best.parts[best.dominant]
    yield f"{_PART[best.dominant].capitalize()} make{'' if best.dominant == 'times' else 's'} most of the range: {part} alone."


def _why_plain(answer: Answer, batch: int) -> str:
    others = [o for o in answer.at(batch) if o.key != BASELINE]
    if not others:
        return "no method that drafts fits beside the target"
    return f"the best method that drafts, {others[0].title}, reaches {others[0].speed} times its speed"


def _reason(answer: Answer, best: Option) -> str:
    """Return why other places are not at hand: what the target leaves."""
    question = answer.question
    least = next((o for o in answer.at(best.batch) if o.key == BASELINE), best)
    target = next(parts[0] for parts in least.kept.values())
    apart = any(o.way.beside for o in answer.at(best.batch))
    if apart or not question.count > 1:
        return ""
    return (
        f"{target.named} in {target.model.dtype} fills {'all' if question.count > 2 else 'both'} cards and leaves none "
        "for a drafter of its own"
    )


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
        found += _batch(question, best)
    found += _dtypes(question, best)
    found += _cards(question, best)
    return found


def facts(answer: Answer) -> dict[str, Any]:
    """Return the JSON object of `specscope advise`."""
    question = answer.question
    return {
        "gpus": f"{question.count}x{question.card}",
        "target": question.target,
        "drafter": question.drafter,
        "dtype": question.dtype,
        "drafter_dtype": question.drafter_dtype or question.dtype,
        "acceptance": [*question.rates],
        "acceptance_known": question.known,
        "context": question.context,
        "tokens": question.tokens,
        "engine": question.engine,
        "clock": "virtual · data sheets",
        "ratio_error": RATIO_ERROR,
        "batches": [
            {
                "batch": batch,
                "answer": headline(answer, batch),
                "notes": [*notes(answer, batch)],
                "changes": [change.facts() for change in changes(answer, batch)],
                "options": [option.facts() for option in answer.at(batch)],
            }
            for batch in question.batches
            if answer.at(batch)
        ],
        "left_out": dict(answer.left_out),
    }


def _same(question: Question, option: Option, batch: int) -> Estimate:
    return Estimate(question, option.way, batch)


def _acceptance(answer: Answer, best: Option) -> Iterator[BreakEven]:
    """Yield the rates at which plain decoding, and another method, become as fast."""
    question, batch = answer.question, best.batch
    plain = plain_estimate(question, batch).tokens_per_second

    def speed(option: Option, rate: float) -> float:
        return _same(replace(question, rates=(rate, rate)), option, batch).tokens_per_second

    def over_plain(rate: float) -> float:
        return speed(best, rate) - plain

    if (rate := _crossing(over_plain, LEAST_RATE, question.rate)) is not None:
        yield BreakEven(
            "acceptance", rate, f"below an acceptance rate of {rate:.2f} plain decoding is as fast"
        )
    others = [o for o in answer.at(batch) if o.key not in (best.key, BASELINE)]
    for other in others[:2]:

        def over_other(rate: float, other: Option = other) -> float:
            return speed(best, rate) - speed(other, rate)

        for low, high, word in (
            (question.rate, MOST_RATE, "above"),
            (LEAST_RATE, question.rate, "below"),
        ):
            if over_other(question.rate) > 0 and (rate := _crossing(over_other, low, high)) is not None:
                text = f"{word} an acceptance rate of {rate:.2f} {other.title} is as fast"
                yield BreakEven("acceptance", rate, text)


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
        return _same(replace(question, context=context), best, best.batch).fits

    most = _most(fits, question.context, MOST_CONTEXT)
    if most < MOST_CONTEXT:
        yield BreakEven("context", most, f"beyond a context of {most:,} tokens it does not fit there")


def _batch(question: Question, best: Option) -> Iterator[BreakEven]:
    """Yield the batch size from which on the method does not pay, and the largest that fits."""

    def fits(batch: int) -> bool:
        return _same(question, best, batch).fits

    most = _most(fits, best.batch, 4096)
    for batch in (2**i for i in range(13)):
        if best.batch < batch <= most:
            able = [
                one for one in estimates(question, batch) if one.way.entrant.short == best.way.entrant.short
            ]
            with suppress(OutOfMemory):
                plain = plain_estimate(question, batch).tokens_per_second
                if not able:
                    text = f"from a batch of {batch} on it cannot go on in lockstep with the others, or does not fit"
                    yield BreakEven("batch", batch, text)
                    return
                if able[0].tokens_per_second <= plain:
                    yield BreakEven("batch", batch, f"from a batch of {batch} on plain decoding is as fast")
                    return
    if most < 4096:
        yield BreakEven("batch", most, f"beyond a batch of {most} it does not fit there")


def _dtypes(question: Question, best: Option) -> Iterator[BreakEven]:
    for dtype in SMALLER[SMALLER.index(question.dtype) + 1 if question.dtype in SMALLER else 0 :]:
        text = _otherwise(question.in_dtype(dtype), best)
        if text:
            yield BreakEven("dtype", dtype, f"in {dtype}: {text}")


def _cards(question: Question, best: Option) -> Iterator[BreakEven]:
    if question.count * 2 <= 16:
        more = replace(question, count=2 * question.count)
        if text := _otherwise(more, best):
            yield BreakEven("cards", more.count, f"on {more.count} × {question.card}: {text}")


def _otherwise(question: Question, best: Option) -> str:
    """Return the best method of another question by the closed form, and how fast it is."""
    try:
        plain = plain_estimate(question, best.batch)
    except (OutOfMemory, UsageError):
        return ""
    found = max(estimates(question, best.batch), key=lambda one: one.tokens_per_second, default=plain)
    if found.tokens_per_second <= plain.tokens_per_second:
        return f"plain decoding, {plain.tokens_per_second / best.tokens_per_second:.1f} times as fast as now"
    title = (
        found.way.entrant.title if not found.way.entrant.given.get("placement") else found.way.entrant.short
    )
    return (
        f"{title} with {found.way.words()}, about {found.tokens_per_second / plain.tokens_per_second:.1f} times plain "
        f"decoding there, {found.tokens_per_second / best.tokens_per_second:.1f} times as fast as this answer"
    )


def refusal(question: Question, error: OutOfMemory) -> str:
    """Return why nothing fits, and on which other cards the target would."""
    able = list[str]()
    for card in data("gpus")["cards"]:
        with suppress(OutOfMemory, UsageError):
            plain_estimate(replace(question, card=card), min(question.batches))
            able.append(card)
    where = f"; {question.count} × {' or '.join(able)} would hold it" if able else ""
    return f"{error}{where}"
