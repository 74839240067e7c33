"""A question to `specscope advise`: cards, models, acceptance rates, batch and context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log
from typing import TYPE_CHECKING, Any

from specscope.engine.bounds import MOST_SEQUENCES
from specscope.engine.drafting.pace import Rate
from specscope.engine.errors import UsageError, shown
from specscope.engine.simulate.profile import Profile, profile_of
from specscope.engine.simulate.records import MOST_GPUS
from specscope.engine.simulate.roofline import SPLITS, WEIGHT_BITS
from specscope.engine.simulate.shapes import data, with_shape
from specscope.engine.types import check_choice, check_range
from specscope.traces.advise.acceptance import (
    LEAST_RATE,
    MOST_PLACES,
    MOST_RATE,
    UNKNOWN,
    check_rates,
    moved,
    single,
)
from specscope.traces.advise.others import KINDS, Other
from specscope.traces.lab.plan import default

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

DTYPES = tuple(WEIGHT_BITS)
WIDTHS = (1, 2, 4, 8, 16)
"""Cards that can share a model by tensors."""
MOST_CONTEXT = 1 << 20
MOST_BATCHES = 4
MOST_BATCH = min(64, MOST_SEQUENCES)
MOST_NEW = 512
_GPUS = re.compile(r"\s*([0-9]{1,9})\s*[x×]\s*(.+)")


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody has, and wants to decode with it.

    Raises:
        UsageError: A value is wrong; the message has it and the range.
    """

    count: int
    """Cards."""
    card: str
    """A card of `assets/gpus.toml`."""
    target: str | Mapping[str, Any]
    """A shape of `assets/shapes.toml`, the path of a config.json, or sizes as in a profile."""
    drafter: str | Mapping[str, Any]
    dtype: str = "bfloat16"
    """Of the target's weights."""
    drafter_dtype: str = ""
    """Of the drafter's; the target's if empty."""
    rates: tuple[float, float] = UNKNOWN
    """The lowest and the highest acceptance rate that is expected."""
    places: tuple[float, ...] = ()
    """The rates of the places of a draft at the rate in the middle; all have that one if empty."""
    others: tuple[Other, ...] = ()
    """Drafts without the drafter, with their own acceptance."""
    recorded: Trace | None = field(default=None, repr=False, compare=False)
    """A run of one sequence whose drafts are replayed, by methods that can be driven by it."""
    batches: tuple[int, ...] = (1,)
    context: int = 1024
    """Tokens of each prompt."""
    tokens: int = 128
    """New tokens of each answer."""
    engine: str = "graphs"
    """How forwards are launched: a key of `[engines]` in `assets/gpus.toml`."""
    target_cards: int = 0
    """Cards of a target, also where it decodes plainly; 0 searches."""
    drafter_cards: int = 0
    methods: tuple[str, ...] = ()
    """Methods besides plain decoding; all of the map if empty."""
    split: str = "tensor"
    """How several cards share a target, one of `SPLITS`."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("the card", self.card, data("gpus")["cards"]),
            ("the dtype", self.dtype, DTYPES),
            ("the drafter's dtype", self.drafter_dtype or self.dtype, DTYPES),
            ("the engine", self.engine, data("gpus")["engines"]),
            ("the split", self.split, SPLITS),
            *(("the kind of drafts", other.kind, KINDS) for other in self.others),
            *(("the method", key, [entrant.key for entrant in default().methods]) for key in self.methods),
        ):
            check_choice(f"{name} is {shown(value)}", value, known, name)
        check_range("the number of cards", self.count, 1, min(64, MOST_GPUS))
        check_rates(self.rates)
        check_range("the number of places", len(self.places), 0, MOST_PLACES)
        for rate in self.places:
            check_range("the acceptance rate of a place", rate, LEAST_RATE, MOST_RATE)
        check_range("the number of batch sizes", len(self.batches), 1, MOST_BATCHES)
        for batch in self.batches:
            check_range("the batch", batch, 1, MOST_BATCH)
        check_range("the context", self.context, 1, MOST_CONTEXT)
        check_range("new tokens", self.tokens, 16, MOST_NEW)
        for cards, split in ((self.target_cards, self.split), (self.drafter_cards, "tensor")):
            if cards and cards not in (widths := self.widths(split)):
                known = ", ".join(map(str, widths))
                raise UsageError(f"a model's number of cards is {cards}; choose one of {known}, or 0")
        if 0 < self.target_cards < self.drafter_cards:
            raise UsageError(
                f"the drafter's number of cards is {self.drafter_cards}; it must be at most the target's, {self.target_cards}"
            )
        for role, shape in (("target", self.target), ("drafter", self.drafter)):
            with_shape(_table(shape), f"the {role}'s ")
        self.profile(
            self.count, self.target_cards or 1, self.drafter_cards or 1
        )  # checks sizes that are typed
        for other in self.others:
            self.about(other.kind)

    def widths(self, split: str) -> list[int]:
        """Return the numbers of cards that can share a model."""
        return [n for n in range(1, self.count + 1) if split == "layers" or n in WIDTHS]

    @property
    def rate(self) -> float:
        """The rate in the middle."""
        return sum(self.rates) / 2

    def at(self, rate: float = 0.0) -> Rate:
        """Return the rates of the places at a single rate; 0 is the one in the middle."""
        rate = rate or self.rate
        if not self.places or rate == self.rate:
            return self.places or rate
        return moved(self.places, single(self.places) ** (log(rate) / log(self.rate)))

    def with_rate(self, rate: float, kind: str = "") -> Question:
        """Return the question with another single rate, of the drafter or of other drafts."""
        if kind:
            own, others = self.about(kind).with_rate(rate), [o for o in self.others if o.kind != kind]
            return replace(self, others=(*others, Other(kind, own.rates, own.places)))
        places = self.at(rate)
        return replace(self, rates=(rate, rate), places=places if isinstance(places, tuple) else ())

    @property
    def known(self) -> bool:
        """Whether an acceptance rate was given."""
        return self.rates is not UNKNOWN

    def about(self, kind: str) -> Question:
        """Return the question with other drafts in place of the drafter; itself without a kind."""
        found = next((other for other in self.others if other.kind == kind), None)
        if found is None:
            return self
        return replace(
            self,
            drafter=found.model(with_shape(_table(self.target), "the target's ")),
            drafter_dtype="",
            rates=found.rates,
            places=found.places,
            others=(),
            recorded=None,
        )

    def profile(self, cards: int, target: int, drafter: int, drafter_split: str = "tensor") -> Profile:
        """Return a virtual cluster of so many cards, whose models lie on so many of them."""
        step = data("gpus")["steps"][self.engine]
        models = {
            role: {**_table(shape), "dtype": dtype, "gpus": width, "split": split}
            for role, shape, dtype, width, split in (
                ("target", self.target, self.dtype, target, self.split),
                ("drafter", self.drafter, self.drafter_dtype or self.dtype, drafter, drafter_split),
            )
        }
        pair = {"title": "advice", "target": "target", "drafter": "drafter", "source": "typed"}
        return profile_of(
            "advice",
            {
                "name": "advice",
                "title": f"{self.count} × {self.card}",
                "source": "data sheets",
                "default": "advice",
                "gpus": max(cards, target, drafter),
                "hardware": {"card": self.card, "engine": self.engine},
                "step": step,
                "models": models,
                "pairs": {"advice": pair},
            },
        )


def _table(shape: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"shape": shape} if isinstance(shape, str) else dict(shape)


def parse_gpus(text: str) -> tuple[int, str]:
    """Return number and card of a text such as `2xH100`; one card without a number."""
    count, card = found.groups() if (found := _GPUS.fullmatch(text)) else (None, text)
    return int(count or 1), card.strip()


def parse_batches(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"the batch is {shown(text)}; write whole numbers, as in 1,8") from None
