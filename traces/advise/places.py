"""All ways in which a method can use the cards: where target and drafter lie, and what fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.methods import BASELINE, find
from specscope.engine.simulate.latency import FITTED_SIZE
from specscope.engine.simulate.roofline import COPIES
from specscope.traces.advise.others import KINDS, kind_of
from specscope.traces.advise.question import WIDTHS, Question
from specscope.traces.lab.forms import FORMS, MapPlace, best_settings, verified_rows
from specscope.traces.lab.plan import Entrant, default
from specscope.traces.lab.sweep import scripted_pair
from specscope.traces.lab.winners import unrated

if TYPE_CHECKING:
    from specscope.engine.cluster.assignment import Assigned
    from specscope.engine.cluster.capacity import Kept, Need
    from specscope.engine.layout import Layout
    from specscope.engine.simulate.latency import Latency
    from specscope.engine.simulate.profile import Profile

PLAIN = Entrant(BASELINE, "plain", "")
ONE_CARD = Entrant(
    "pearl", "co-located PEARL", "shared", given={"placement": "co-located"}, search={"gamma": 24}
)
"""PEARL whose drafter works at the same time on the target's cards, each at half the speed."""


class Seating(NamedTuple):
    """A method with the cards of its models."""

    entrant: Entrant
    target: int
    """Cards of a target, which share it by tensors."""
    drafter: int
    """Cards of the drafter; 0 without one."""
    cards: int
    """Cards of an engine."""
    share: int = 0
    """Target servers, or cards that share the drafter's layers; 0 for methods without either."""
    copies: bool = False
    """Whether each of the drafter's cards has all of it, for a share of the sequences."""
    engines: int = 1
    """Engines side by side, each on so many cards with a share of the sequences."""

    @property
    def total(self) -> int:
        """All cards that are used."""
        return self.engines * self.cards

    @property
    def beside(self) -> bool:
        """Whether the drafter has cards of its own."""
        return self.drafter > 0 and self.cards >= max(1, self.servers) * self.target + self.drafter

    @property
    def servers(self) -> int:
        return self.share if self.entrant.drafters else 1

    def words(self) -> str:
        """Return where the models lie."""
        if self.engines > 1:
            return f"{self.engines} engines, each with {self._replace(engines=1).words()}"
        split = f"{self.target} cards" if self.target > 1 else "one card"
        target = f"{self.servers} targets on {split} each" if self.servers > 1 else f"the target on {split}"
        if not self.drafter:
            return target
        if kind := kind_of(self.entrant):
            return f"{target}, {KINDS[kind].place}"
        drafter = "copies of the drafter" if self.copies else "the drafter"
        if self.share and not self.entrant.drafters:
            return f"{target}, the drafter's layers shared by {self.share}"
        if self.beside:
            own = f"{self.drafter} cards" if self.drafter > 1 else "one card"
            return f"{target}, {drafter} on {own} of {'their' if self.copies else 'its'} own"
        if self.drafter == self.target:
            return f"{target}, {drafter} on the same"
        return f"{target}, {drafter} on {self.drafter if self.drafter > 1 else 'one'} of them"


def titled(entrant: Entrant) -> str:
    """Return a method's name for people, by its place or drafts where one method has several."""
    return entrant.short if entrant.given.get("placement") or kind_of(entrant) else entrant.title


def plain_ways(question: Question, batch: int = 1) -> Iterator[Seating]:
    for engines in _engines(question.count, batch):
        for target in _widths(question, engines, question.target_cards, question.split):
            yield Seating(PLAIN, target, 0, target, engines=engines)


def ways(question: Question, entrant: Entrant, batch: int = 1) -> Iterator[Seating]:
    """Yield the ways in which a method can use the cards, those with fewer engines first."""
    for engines in _engines(question.count, batch):
        count = question.count // engines
        for target in _widths(question, engines, question.target_cards, question.split):
            for drafter in _widths(question, engines, question.drafter_cards):
                if drafter <= target:
                    found = _ways(count, entrant, target, drafter)
                    yield from (way._replace(engines=engines) for way in _with_copies(found, batch, engines))


def _engines(count: int, batch: int) -> list[int]:
    return [n for n in WIDTHS if n <= min(count, batch)]


def _widths(question: Question, engines: int, asked: int, split: str = "tensor") -> list[int]:
    most = question.count // engines
    return [width for width in question.widths(split) if width <= most and asked in (0, width)]


def _with_copies(found: Iterator[Seating], batch: int, engines: int) -> Iterator[Seating]:
    """Yield places, and the same with copies of the drafter where several sequences share them."""
    for way in found:
        yield way
        if way.drafter > 1 and batch > engines and not kind_of(way.entrant):
            yield way._replace(copies=True)


def _ways(count: int, entrant: Entrant, target: int, drafter: int) -> Iterator[Seating]:
    room = count - drafter
    if kind := kind_of(entrant):
        if drafter == (target if KINDS[kind].spread else 1):
            yield Seating(entrant, target, drafter, target)
    elif entrant.share and entrant.drafters:  # target servers beside a drafter
        for servers in range(1, room // target + 1):
            yield Seating(entrant, target, drafter, servers * target + drafter, servers)
    elif entrant.share:  # cards that share the drafter's layers
        for ranks in WIDTHS[1:]:
            if drafter == 1 and ranks <= min(count, entrant.most or count):
                yield Seating(entrant, target, 1, max(ranks, target), ranks)
    elif entrant.drafters:
        if target <= room:
            yield Seating(entrant, target, drafter, target + drafter)
    else:
        yield Seating(entrant, target, drafter, target)
        if entrant is not ONE_CARD and target <= room:
            yield Seating(entrant, target, drafter, target + drafter)


def entrants(question: Question) -> list[Entrant]:
    """Return the methods that are asked for, PEARL on the target's own cards, and other drafts."""
    found = [e for e in default().methods if not question.methods or e.key in question.methods]
    if question.recorded is not None:  # its drafter has doubts of its own
        found = [unrated(e) for e in found]
    shared = [ONE_CARD] if any(e.key == ONE_CARD.key for e in found) else []
    return [*found, *shared, *(KINDS[other.kind].entrant for other in question.others)]


class Estimate:
    """A seating with its times: the best settings, the speed-up, and what each card holds."""

    def __init__(self, question: Question, way: Seating, batch: int) -> None:
        self.question, self.way, self.batch = question.about(kind_of(way.entrant)), way, batch
        self.each = ceil(batch / way.engines)
        """Sequences of an engine, of the one with the most."""
        self._verify: dict[int, float] = {}

    @cached_property
    def profile(self) -> Profile:
        way = self.way
        split = COPIES if way.copies else "tensor"
        return self.question.profile(way.cards, way.target, way.drafter or 1, split)

    @cached_property
    def latency(self) -> Latency:
        return self.profile.latency()

    @cached_property
    def plain_us(self) -> float:
        """Microseconds of a step of plain decoding: in virtual time its forward is all of it."""
        return self._target_us(1)

    def verify_us(self, rows: int) -> float:
        """Return the microseconds of a target forward and its judging; rows of each sequence."""
        if rows not in self._verify:
            self._verify[rows] = self._target_us(rows) + self.latency.sample_us
        return self._verify[rows]

    def _target_us(self, rows: int) -> float:
        return self.latency("target", rows * self.each, self.question.context * self.each, self.each)

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not searched; a group has no more layers than the drafter."""
        drafter = self.latency.drafter
        grouped = self.way.entrant.form == "layers" and drafter is not None and drafter.layers < FITTED_SIZE
        size = {"size": drafter.layers} if grouped and drafter else {}
        return {**self.way.entrant.settings(self.way.share), **size}

    @cached_property
    def draft_us(self) -> float:
        return self.latency("drafter", self.each, self.question.context * self.each, self.each)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The best settings by the closed form, at the rate in the middle."""
        return self._best()

    def _best(self, rate: float = 0.0, error: float = 1.0, longer: float = 1.0) -> dict[str, Any]:
        if not self.way.drafter:
            return {}
        form = partial(self._form, error=error, longer=longer)
        return best_settings(form, self._at(rate), self.given, self.way.entrant.search)

    def _at(self, rate: float) -> MapPlace:
        plan = default()
        return MapPlace(self.latency, 0.0, self.question.at(rate), plan.doubt, plan.misses)

    def speedup(self, config: Mapping[str, Any] | None = None) -> float:
        """Return the closed form's speed-up over plain decoding on the target's own cards.

        `config`: settings; by default the best ones.
        """
        if not self.way.drafter:
            return 1.0
        return self._form(self._at(0.0), **(self.config if config is None else config))

    def tuned(self, rate: float = 0.0, error: float = 1.0, longer: float = 1.0) -> float:
        """Return the speed-up where the settings are tuned to another rate or other times.

        Args:
            rate: The acceptance rate; the one in the middle if 0.
            error: How many times as fast the drafter is as its computed time says.
            longer: How many times as long as computed a verification takes.
        """
        if not self.way.drafter:
            return 1.0
        return self._form(self._at(rate), error, longer, **self._best(rate, error, longer))

    def _form(self, at: MapPlace, error: float = 1.0, longer: float = 1.0, **settings: Any) -> float:
        if (rows := verified_rows(settings)) > MOST_NODES + 1:
            return 0.0
        verify = self.verify_us(rows) * longer
        at = at._replace(c=verify / self.draft_us * error)
        return _FORMS[self.way.entrant.form](at, **settings) * self.plain_us / verify

    @property
    def tokens_per_second(self) -> float:
        """By the closed form, of all sequences."""
        return self.batch * self.speedup() * 1e6 / self.plain_us

    @cached_property
    def kept(self) -> dict[str, list[Kept]]:
        """What each card holds: card -> models.

        Raises:
            OutOfMemory: A card has no room.
        """
        from specscope.engine.cluster.capacity import check_capacity, kept  # imports torch

        placed = self._placed(self.config)
        check_capacity(self.latency, *placed)
        return kept(self.latency, *placed)

    @cached_property
    def missing(self) -> int:
        """Bytes that the fullest card lacks; 0 if all have room."""
        return self._lacks(self.least) or self._lacks(self.config)

    @property
    def least(self) -> dict[str, Any]:
        """The smallest settings: what does not fit with them fits with none."""
        return {**self.given, **dict.fromkeys(self.way.entrant.search, 1)}

    def _lacks(self, config: Mapping[str, Any]) -> int:
        from specscope.engine.cluster.capacity import kept

        held = kept(self.latency, *self._placed(config)).values()
        most = max(sum(part.total for part in parts) for parts in held)
        return max(0, most - int(self.latency.hardware.known("memory_gib") * 2**30))

    def _placed(self, config: Mapping[str, Any]) -> tuple[Assigned, Need]:
        """Return which cards the models take, and for how many tokens."""
        from specscope.engine.cluster.capacity import Need
        from specscope.engine.cluster.options import Options
        from specscope.engine.cluster.profile_devices import profile_devices
        from specscope.engine.simulate.oracle import Source, bernoulli_models

        layout = self.layout(config)
        tokens = Source(bernoulli_models((0.5,), 2), "")
        hardware = replace(self.latency.hardware, memory_gib=None)  # what lacks room is counted, too
        latencies = {self.profile.default: replace(self.latency, hardware=hardware)}
        options = Options(
            runtime="virtual", profile=replace(self.profile, latencies=latencies), tokens=tokens
        )
        assigned = profile_devices(scripted_pair(), options).assign(layout)
        return assigned, Need(self.each, self.question.context + self.question.tokens + layout.slack)

    def layout(self, config: Mapping[str, Any]) -> Layout:
        method = find(self.way.entrant.key)
        return method.layout(method.configure(config))


def _shared(at: MapPlace, gamma: int, **_: Any) -> float:
    """Return PEARL's speed-up where drafter and target share cards: their times add up."""
    overlapped = FORMS["overlapped"](at, gamma)
    longer = max(gamma / at.c, 1.0)
    return overlapped * longer / (gamma / at.c + 1)


_FORMS = {**FORMS, "shared": _shared}
