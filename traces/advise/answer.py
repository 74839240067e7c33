"""The answer: every method in its best places, run in virtual time, with ranges.

A speed-up is a run of the method's own code over plain decoding in its own best place. Its range
has three parts: the acceptance rates that are expected; the errors of the computed times
(`RATIO_ERROR`, `LONGER`); and the luck of the drafts, by seed, the closed form and `DEPENDENT`. The
closed form gives the first two, as factors of the run's number. The parts are independent: their
logarithms add by squares.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from specscope.engine.errors import OutOfMemory, UsageError
from specscope.engine.types import check_range
from specscope.traces.advise.option import Likely, Option, combined
from specscope.traces.advise.places import PLAIN, Estimate, entrants, plain_ways, titled, ways
from specscope.traces.advise.question import Question
from specscope.traces.advise.runs import replay, run, total_speed

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

RATIO_ERROR = 0.24
"""T(target) / T(drafter) of the roofline may be off by a factor of 1 and this share.

Of the 45 pairs of models in PEARL's Table 10, 80 % are off by no more; of those in nano-PEARL's
AIME rows, which are all targets, all.
"""
LONGER = 0.2
"""Share by which a verification may take longer, beside a forward of one row, than computed.

Published ones take up to 31 % longer, six of seven at most 21 % (PEARL's Table 15, EMS-SD's Figure
5, SSD's reproduction, docs/bench.md).
"""
DEPENDENT = 0.06
"""Share by which drafts of a text may bring fewer or more tokens than drafts of one rate.

Words are not accepted independently: the chains of the bundled pair's eight texts bring 5 % fewer
tokens than their rate says, PEARL's 3 % more, single texts 13 % fewer to 6 % more
(`assets/papers/pearl-acceptance.toml`).
"""
MOST_PROMPTED = 1 << 18
"""Tokens of all prompts of a batch: a run holds them."""
SEEDS = 2
KEPT = 2
"""Places of a method that are run: the best ones by the closed form."""
REPLAYED, BY_PLACE, BY_RATE = "the recorded drafts", "rates by place", "one rate"
"""Where drafts are from."""
PARTS = ("acceptance", "times", "drafts")
LeftOut: TypeAlias = dict[tuple[str, int], str]
"""(method, batch) -> why it is left out."""


@dataclass(slots=True)
class Answer:
    """All options of a question so far, the reasons why others are none."""

    question: Question
    options: list[Option] = field(default_factory=list[Option])
    left_out: LeftOut = field(default_factory=dict[tuple[str, int], str])

    scales: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """(entrant, batch) -> how many times as fast its run is as its closed form says."""

    def scale(self, one: Estimate) -> float:
        """Return how many times as fast as its closed form says a placement is likely to be.

        It is that of the method's best place here; of a method that has none, the placement's own.
        """
        key = one.way.entrant.short, one.batch
        if key not in self.scales:
            self.scales[key] = total_speed(one, run(one, 0)) / one.tokens_per_second
        return self.scales[key]

    def at(self, batch: int) -> list[Option]:
        """Return the options of a batch size, the fastest first."""
        return sorted((o for o in self.options if o.batch == batch), key=lambda o: -o.speed.mid)

    def best(self, batch: int) -> Option:
        return self.at(batch)[0]


def advise(question: Question, cancel: threading.Event | None = None) -> Answer:
    """Return the answer to a question.

    Raises:
        OutOfMemory: The target fits in no way; the message has the sums and what would fit.
    """
    answer = Answer(question)
    for _ in answered(answer, cancel):
        pass
    return answer


def answered(answer: Answer, cancel: threading.Event | None = None) -> Iterator[tuple[int, int]]:
    """Fill an answer and yield (runs done, runs in all) after each; a set `cancel` ends it."""
    for batch in answer.question.batches:
        check_range("the context times the batch", batch * answer.question.context, 1, MOST_PROMPTED)
    plans = [_Plan(answer, batch) for batch in answer.question.batches]
    total, done = sum(len(plan.chosen) + 1 for plan in plans), 0
    for plan in plans:
        for option in plan.options():
            if cancel is not None and cancel.is_set():
                return
            answer.options.append(option)
            done += 1
            yield done, total


def plain_estimate(question: Question, batch: int) -> Estimate:
    """Return plain decoding in its fastest place.

    Raises:
        OutOfMemory: It fits in none.
    """
    found = [Estimate(question, way, batch) for way in plain_ways(question, batch)]
    able = [one for one in found if not one.missing]
    if not able:
        _ = found[-1].kept  # raises, with the sums of the most cards
    return max(able, key=lambda one: one.tokens_per_second)


def estimates(question: Question, batch: int, left_out: LeftOut | None = None) -> list[Estimate]:
    """Return each method's places that fit and work, the best ones by the closed form first."""
    found = list[Estimate]()
    for entrant in entrants(question):
        mine = [Estimate(question, way, batch) for way in ways(question, entrant, batch)]
        able, reason = _able(question, mine)
        if not able and left_out is not None:
            left_out[titled(entrant), batch] = reason
        able.sort(key=lambda one: (-round(one.tokens_per_second, 3), one.way.total))
        found += able
    return found


def _able(question: Question, mine: list[Estimate]) -> tuple[list[Estimate], str]:
    """Return the places that can be used; without one, why the nearest to it cannot."""
    from specscope.engine.run.serving import Load, under_load  # imports torch

    fixed = question.target_cards or question.drafter_cards
    reason = "it has no place with these numbers of cards" if fixed else "it needs more cards"
    if mine and mine[0].batch > 1:
        try:
            under_load(mine[0].way.entrant.key, mine[0].layout(mine[0].least), Load((0.0,)), 1)
        except UsageError:
            mine = [one for one in mine if one.each == 1]
            reason = (
                "sequences of a batch go in lockstep, and it starts and stops forwards at any time; an engine for "
                "each needs more cards"
            )
    fitting = [one for one in mine if not one.missing]
    if mine and not fitting:
        try:
            _ = min(mine, key=lambda one: one.missing).kept
        except OutOfMemory as error:
            reason = str(error)
    able = [one for one in fitting if one.speedup() > 0]
    if fitting and not able:
        servers = fitting[0].way.entrant.drafters
        reason = (
            "its targets cannot keep up with so fast a drafter"
            if servers
            else "the drafter has too few layers"
        )
    return able, reason


class _Plan:
    """The runs of a batch size."""

    def __init__(self, answer: Answer, batch: int) -> None:
        self.answer, self.question, self.batch = answer, answer.question, batch
        self.plain = plain_estimate(self.question, batch)
        kept = dict[str, list[Estimate]]()
        for one in estimates(self.question, batch, answer.left_out):
            mine = kept.setdefault(one.way.entrant.short, [])
            if len(mine) < KEPT:
                mine.append(one)
        self.chosen = [one for mine in kept.values() for one in mine]
        self.groups = [uuid.uuid4().hex[:12] for _ in range(SEEDS)]

    def options(self) -> Iterator[Option]:
        plain = run(self.plain, 0, self.groups[0])  # which draws nothing
        total, one = total_speed(self.plain, plain), Likely(1.0, 1.0, 1.0)
        self.answer.scales[PLAIN.short, self.batch] = total / self.plain.tokens_per_second
        yield Option(self.plain.way, self.batch, {}, one, {}, total, self.plain.kept, (plain,))
        for one in self.chosen:
            yield self._option(one, total)

    def _option(self, one: Estimate, plain: float) -> Option:
        traces, drafts = self._runs(one)
        found = [total_speed(one, trace) / plain for trace in traces]
        mid, factors = fmean(found), self._parts(one)
        parts = {name: Likely(*(mid * factor for factor in part)) for name, part in factors.items()}
        if one.each == 1:  # a few runs are luck; the closed form draws nothing
            found.append(one.tokens_per_second / self.plain.tokens_per_second)
        parts["drafts"] = Likely(min(found) * (1 - DEPENDENT), mid, max(found) * (1 + DEPENDENT))
        total = mid * plain
        self.answer.scales.setdefault((one.way.entrant.short, self.batch), total / one.tokens_per_second)
        return Option(
            one.way,
            self.batch,
            one.config,
            combined(mid, [*parts.values()]),
            parts,
            total,
            one.kept,
            (traces[0],),
            drafts,
        )

    def _runs(self, one: Estimate) -> tuple[list[Trace], str]:
        """Return a placement's runs and where their drafts are from."""
        drafts = BY_PLACE if one.question.places else ""
        if one.question.recorded is not None:
            try:
                return [replay(one, self.groups[0])], REPLAYED
            except UsageError as error:
                drafts = f"{drafts or BY_RATE}: {error}"
        return [run(one, seed, group) for seed, group in enumerate(self.groups)], drafts

    def _parts(self, one: Estimate) -> dict[str, Likely]:
        """Return the factors by which acceptance and times may change a speed-up."""
        usual, ratio = one.speedup(), 1 + RATIO_ERROR

        def factor(rate: float = 0.0, error: float = 1.0, longer: float = 1.0) -> float:
            return (one.tuned(rate, error, longer) or usual) / usual  # 0: its servers have a queue

        rates = [factor(rate=rate) for rate in one.question.rates]
        elsewhere = ratio if one.way.target != self.plain.way.target else 1.0  # plain decoding is: as unsure
        slower = factor(error=1 / ratio), factor(longer=1 + LONGER), 1 / elsewhere
        faster = factor(error=ratio), elsewhere
        times = [Likely(min(1.0, change), 1.0, 1.0) for change in slower]
        times += [Likely(1.0, 1.0, max(1.0, change)) for change in faster]
        return {
            "acceptance": Likely(min(1.0, *rates), 1.0, max(1.0, *rates)),
            "times": combined(1.0, times),
        }
