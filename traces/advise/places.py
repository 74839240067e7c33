"""All ways in which a method can use the cards: where target and drafter lie, and what fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.engine.drafting.static import MOST_NODES
from specscope.engine.methods import BASELINE, find
from specscope.engine.simulate.latency import FITTED_SIZE
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
    """All cards that are used."""
    share: int = 0
    """Target servers, or cards that share the drafter's layers; 0 for methods without either."""

    @property
    def beside(self) -> bool:
        """Whether the drafter has cards of its own."""
        return self.drafter > 0 and self.cards >= max(1, self.servers) * self.target + self.drafter

    @property
    def servers(self) -> int:
        return self.share if self.entrant.drafters else 1

    @property
    def given(self) -> dict[str, Any]:
        own = {self.entrant.share: self.share} if self.share else {}
        return {**self.entrant.given, **own}

    def words(self) -> str:
        """Return where the models lie."""
        split = f"{self.target} cards" if self.target > 1 else "one card"
        target = f"{self.servers} targets on {split} each" if self.servers > 1 else f"the target on {split}"
        if not self.drafter:
            return target
        if self.share and not self.entrant.drafters:
            return f"{target}, the drafter's layers shared by {self.share}"
        if self.beside:
            own = f"{self.drafter} cards" if self.drafter > 1 else "one card"
            return f"{target}, the drafter on {own} of its own"
        if self.drafter == self.target:
            return f"{target}, the drafter on the same"
        return f"{target}, the drafter on {self.drafter if self.drafter > 1 else 'one'} of them"


def titled(entrant: Entrant) -> str:
    """Return a method's name for people, by its place where one method has two."""
    return entrant.short if entrant.given.get("placement") else entrant.title


def plain_ways(question: Question) -> Iterator[Seating]:
    for target in _widths(question, question.target_cards, question.split):
        yield Seating(PLAIN, target, 0, target)


def ways(question: Question, entrant: Entrant) -> Iterator[Seating]:
    """Yield the ways in which a method can use the cards, those with fewer cards first."""
    for target in _widths(question, question.target_cards, question.split):
        for drafter in _widths(question, question.drafter_cards):
            if drafter <= target:
                yield from _ways(question.count, entrant, target, drafter)


def _widths(question: Question, asked: int, split: str = "tensor") -> list[int]:
    return [width for width in question.widths(split) if asked in (0, width)]


def _ways(count: int, entrant: Entrant, target: int, drafter: int) -> Iterator[Seating]:
    room = count - drafter
    if entrant.share and entrant.drafters:  # target servers beside a drafter
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
    """Return the methods of the map that are asked for, and PEARL on the target's own cards."""
    found = [e for e in default().methods if not question.methods or e.key in question.methods]
    if question.recorded is not None:  # its drafter has doubts of its own
        found = [unrated(e) for e in found]
    return [*found, *([ONE_CARD] if any(e.key == ONE_CARD.key for e in found) else [])]


class Estimate:
    """A seating with its times: the best settings, the speed-up, and what each card holds."""

    def __init__(self, question: Question, way: Seating, batch: int) -> None:
        self.question, self.way, self.batch = question, way, batch
        self._verify: dict[int, float] = {}

    @cached_property
    def profile(self) -> Profile:
        return self.question.profile(self.way.cards, self.way.target, self.way.drafter or 1)

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
        return self.latency("target", rows * self.batch, self.question.context * self.batch, self.batch)

    @property
    def given(self) -> dict[str, Any]:
        """The settings that are not searched; a group has no more layers than the drafter."""
        drafter = self.latency.drafter
        grouped = self.way.entrant.form == "layers" and drafter is not None and drafter.layers < FITTED_SIZE
        return {**self.way.given, **({"size": drafter.layers} if grouped and drafter else {})}

    @cached_property
    def draft_us(self) -> float:
        return self.latency("drafter", self.batch, self.question.context * self.batch, self.batch)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The best settings by the closed form, at the rate in the middle."""
        if not self.way.drafter:
            return {}
        plan = default()
        at = MapPlace(self.latency, 0.0, self.question.at(), plan.doubt, plan.misses)
        return best_settings(self._form, at, self.given, self.way.entrant.search)

    def speedup(
        self,
        rate: float = 0.0,
        error: float = 1.0,
        longer: float = 1.0,
        config: Mapping[str, Any] | None = None,
    ) -> float:
        """Return the closed form's speed-up over plain decoding on the target's own cards.

        Args:
            rate: The acceptance rate; the one in the middle if 0.
            error: How many times as fast the drafter is as its computed time says.
            longer: How many times as long as computed a verification takes.
            config: Settings; by default the best ones.
        """
        if not self.way.drafter:
            return 1.0
        plan = default()
        at = MapPlace(self.latency, 0.0, self.question.at(rate), plan.doubt, plan.misses)
        return self._form(at, error, longer, **(self.config if config is None else config))

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
        return assigned, Need(self.batch, self.question.context + self.question.tokens + layout.slack)

    def layout(self, config: Mapping[str, Any]) -> Layout:
        method = find(self.way.entrant.key)
        return method.layout(method.configure(config))


def _shared(at: MapPlace, gamma: int, **_: Any) -> float:
    """Return PEARL's speed-up where drafter and target share cards: their times add up."""
    overlapped = FORMS["overlapped"](at, gamma)
    longer = max(gamma / at.c, 1.0)
    return overlapped * longer / (gamma / at.c + 1)


_FORMS = {**FORMS, "shared": _shared}
