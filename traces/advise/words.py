"""The answer in words: the best method with its reason, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.methods import BASELINE
from specscope.engine.simulate.shapes import data
from specscope.traces.advise.answer import RATIO_ERROR, REPLAYED, Answer, plain_estimate
from specscope.traces.advise.changes import changes
from specscope.traces.advise.option import Option
from specscope.traces.advise.others import KINDS, kind_of
from specscope.traces.advise.places import Estimate, plain_ways
from specscope.traces.advise.question import Question

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


def refusal(question: Question, error: OutOfMemory) -> str:
    """Return why nothing fits, and on which other cards the target would."""
    able = list[str]()
    for card in data("gpus")["cards"]:
        with suppress(OutOfMemory, UsageError):
            plain_estimate(replace(question, card=card), min(question.batches))
            able.append(card)
    where = f"; {question.count} × {' or '.join(able)} would hold it" if able else ""
    return f"{error}{where}"
