"""The answer in words: the best method with its reason, and what would change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.methods import BASELINE
from specscope.engine.simulate.roofline import WEIGHT_BITS
from specscope.engine.simulate.shapes import data
from specscope.traces.advise.acceptance import LEAST_RATE, MOST_RATE
from specscope.traces.advise.answer import RATIO_ERROR, REPLAYED, Answer, Option, estimates, plain_estimate
from specscope.traces.advise.others import KINDS, kind_of
from specscope.traces.advise.places import PLAIN, Estimate, plain_ways, titled
from specscope.traces.advise.question import MOST_CONTEXT, WIDTHS, Question

SMALLER = ("fp8", "int4")
"""Dtypes that a hint tries."""
LITTLE = 0.05
"""Less of a change in speed is none."""
MOST_SUMMED = 4096
"""Sequences for which the sums of memory are made, more than a question may have."""
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
    yield from _drafts(answer, batch)
    part = best.parts[best.dominant]
    yield f"{_PART[best.dominant].capitalize()} make{'' if best.dominant == 'times' else 's'} most of the range: {part} alone."


def _drafts(answer: Answer, batch: int) -> Iterator[str]:
    """Yield where the drafts of the methods are from, if not from a single rate."""
    question, kinds = answer.question, dict[str, list[str]]()
    for option in answer.at(batch):
        if option.drafts and not kind_of(option.way.entrant):
            kinds.setdefault(option.drafts, []).append(option.title)
    run = f"run {question.recorded.header.run_id}" if question.recorded else ""
    for drafts, titles in kinds.items():
        who = "" if len(kinds) == 1 else f" for {_listed([*dict.fromkeys(titles)])}"
        if drafts == REPLAYED:
            yield f"The drafts of {run} are replayed{who}."
            continue
        rates, _, reason = drafts.partition(": ")
        yield f"Drafts are drawn at {rates}{f' of {run}' if run else ''}{who}{f': {reason}' if reason else ''}."
    for other in question.others:
        yield KINDS[other.kind].assumed
    if question.places and [*kinds] != [REPLAYED]:
        places = ", ".join(f"{rate:.2f}" for rate in question.places)
        yield f"The places of a draft have the rates {places}; all later ones have the last."


def _why_plain(answer: Answer, batch: int) -> str:
    others = [o for o in answer.at(batch) if o.key != BASELINE]
    if not others:
        return "none of the methods that draft can be used"
    return f"the best method that drafts, {others[0].title}, reaches {others[0].speed} times its speed"


def _reason(answer: Answer, best: Option) -> str:
    """Return why no drafter has cards of its own, if the target leaves it none."""
    question = answer.question
    ways = [Estimate(question, way, best.batch) for way in plain_ways(replace(question, target_cards=0))]
    able = [one for one in ways if not one.missing]
    if question.count == 1 or min(one.way.target for one in able) < question.count:
        return ""
    (target,) = next(iter(able[0].kept.values()))
    cards = "both" if question.count == 2 else f"all {question.count}"
    return f"{target.named} in {target.model.dtype} needs {cards} cards, which leaves none for a drafter of its own"


def left_out(answer: Answer) -> dict[str, str]:
    """Return the methods that are left out, those with the same reason together -> the reason."""
    reasons = dict[str, dict[str, list[int]]]()
    for (method, batch), reason in answer.left_out.items():
        reasons.setdefault(reason, {}).setdefault(method, []).append(batch)
    together = dict[tuple[str, tuple[int, ...]], list[str]]()
    for reason, methods in reasons.items():
        for method, batches in methods.items():
            together.setdefault((reason, tuple(batches)), []).append(method)
    return {
        f"{_listed(methods)}{'' if batches == answer.question.batches else f' at batch {_listed(batches)}'}": reason
        for (reason, batches), methods in together.items()
    }


def _listed(things: Sequence[object]) -> str:
    *most, last = map(str, things)
    return f"{', '.join(most)} and {last}" if most else last


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
        "places": [*question.places],
        "recorded": question.recorded.header.run_id if question.recorded else None,
        "others": {other.kind: [*other.rates] for other in question.others},
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
        "left_out": left_out(answer),
    }


def _same(question: Question, option: Option, batch: int) -> Estimate:
    return Estimate(question, option.way, batch)


def _acceptance(answer: Answer, best: Option) -> Iterator[BreakEven]:
    """Yield the rates at which plain decoding, and another method, become as fast."""
    question, least = answer.question, LEAST_RATE

    def ahead(rate: float, other: Option) -> float:
        mine, others = (
            _closed(question.with_rate(rate), o) / _closed(question, o) * o.tokens_per_second
            for o in (best, other)
        )
        return mine - others

    plain, *others = sorted(answer.at(best.batch), key=lambda o: o.key != BASELINE)
    if (rate := _crossing(partial(ahead, other=plain), least, question.rate)) is not None:
        least = rate
        yield BreakEven(
            "acceptance", rate, f"below an acceptance rate of {rate:.2f} plain decoding is as fast"
        )
    rivals = {o.title: o for o in reversed(others) if o.title != best.title}
    for other in [*reversed(rivals.values())][:2]:
        over = partial(ahead, other=other)
        for low, high, word in ((question.rate, MOST_RATE, "above"), (least, question.rate, "below")):
            if (rate := _crossing(over, low, high)) is not None:
                text = f"{word} an acceptance rate of {rate:.2f} {other.title} is as fast"
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
            text = f"with more than {_sequences(best.batch)} it cannot be used: they go in lockstep, and it does not"
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
        if text := _otherwise(answer, answer.question.in_dtype(dtype), best):
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


def refusal(question: Question, error: OutOfMemory) -> str:
    """Return why nothing fits, and on which other cards the target would."""
    able = list[str]()
    for card in data("gpus")["cards"]:
        with suppress(OutOfMemory, UsageError):
            plain_estimate(replace(question, card=card), min(question.batches))
            able.append(card)
    where = f"; {question.count} × {' or '.join(able)} would hold it" if able else ""
    return f"{error}{where}"
