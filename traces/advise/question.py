"""A question to `specscope advise`: cards, models, acceptance rates, batch and context."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import TYPE_CHECKING, Any

from specscope.engine.bounds import MOST_SEQUENCES
from specscope.engine.errors import UsageError, shown
from specscope.engine.simulate.profile import Profile, profile_of
from specscope.engine.simulate.records import MOST_GPUS
from specscope.engine.simulate.roofline import SPLITS, WEIGHT_BITS
from specscope.engine.simulate.shapes import data, with_shape
from specscope.engine.types import check_range
from specscope.traces.facts.closed_forms import rate_of_share
from specscope.traces.facts.metrics import measure
from specscope.traces.facts.places import first_rate, level_rate
from specscope.traces.lab.plan import default

if TYPE_CHECKING:
    from specscope.engine.trace.trace import Trace

UNKNOWN = (0.5, 0.95)
"""Acceptance rates where none is known; papers print 0.69 to 0.99, for pairs that they chose."""
DTYPES = tuple(WEIGHT_BITS)
WIDTHS = (1, 2, 4, 8, 16)
"""Cards that can share a model by tensors."""
MOST_CONTEXT = 1 << 20
MOST_BATCHES = 4
MOST_BATCH = min(64, MOST_SEQUENCES)
MOST_NEW = 512
LEAST_RATE, MOST_RATE = 0.01, 0.99
MOST_PLACES = 64
"""Places of a draft whose rates are typed."""
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
            *(("the method", key, [entrant.key for entrant in default().methods]) for key in self.methods),
        ):
            if value not in known:
                raise UsageError(f"{name} is {shown(value)}; choose one of {', '.join(known)}", name)
        check_range("the number of cards", self.count, 1, min(64, MOST_GPUS))
        for rate in self.rates:
            check_range("the acceptance rate", rate, LEAST_RATE, MOST_RATE)
        if self.rates[0] > self.rates[1]:
            raise UsageError(
                f"the acceptance rate is {self.rates[0]:g}:{self.rates[1]:g}; the lowest one comes first",
                "the acceptance rate",
            )
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

    def widths(self, split: str) -> list[int]:
        """Return the numbers of cards that can share a model."""
        return [n for n in range(1, self.count + 1) if split == "layers" or n in WIDTHS]

    @property
    def rate(self) -> float:
        """The rate in the middle."""
        return sum(self.rates) / 2

    @property
    def known(self) -> bool:
        """Whether an acceptance rate was given."""
        return self.rates is not UNKNOWN

    def in_dtype(self, dtype: str) -> Question:
        return replace(self, dtype=dtype, drafter_dtype="")

    def profile(self, cards: int, target: int, drafter: int) -> Profile:
        """Return a virtual cluster of so many cards, whose models lie on so many of them."""
        step = data("gpus")["steps"][self.engine]
        models = {
            role: {**_table(shape), "dtype": dtype, "gpus": width, "split": split}
            for role, shape, dtype, width, split in (
                ("target", self.target, self.dtype, target, self.split),
                ("drafter", self.drafter, self.drafter_dtype or self.dtype, drafter, "tensor"),
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


def parse_rates(text: str) -> tuple[float, float]:
    """Return the lowest and the highest rate of `0.7`, `0.6:0.8`, `unknown`, or `0.9,0.8,0.6`.

    Numbers with commas are the rates of the places of a draft. They count as the one rate at which
    a draft of that length has as many accepted tokens on average.
    """
    if text == "unknown":
        return UNKNOWN
    places = text.split(",")
    ends = text.split(":")
    try:
        found = [float(part) for part in (places if len(places) > 1 else ends)]
        if len(places) == 1 and len(found) > 2:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"the acceptance rate is {shown(text)}; write a rate as in 0.7, a range as in 0.6:0.8, the rates of the "
            "places of a draft as in 0.9,0.8,0.7, or unknown"
        ) from None
    if len(places) == 1:
        return found[0], found[-1]
    check_range("the number of places", len(found), 2, MOST_PLACES)
    for place in found:
        check_range("the acceptance rate of a place", place, LEAST_RATE, MOST_RATE)
    share = sum(prod(found[: i + 1]) for i in range(len(found))) / len(found)
    rate = round(rate_of_share(share, len(found)), 4)
    return rate, rate


def rates_of_run(trace: Trace) -> tuple[float, float]:
    """Return the acceptance rate of a stored or imported run, two standard errors to either side.

    UsageError if the run does not tell which of its tested drafts were accepted.
    """
    levels = measure(trace).per_level
    rate = first_rate(trace.decisions) if trace.decisions else level_rate(levels)
    tested = sum(level.reached for level in levels)
    if rate is None or not tested:
        raise UsageError(
            f"run {trace.header.run_id} does not tell how many drafts were accepted by place; take a run of a method with "
            "a drafter, or a log or counters with rates per position"
        )
    error = 2 * sqrt(rate * (1 - rate) / tested)
    low, high = (min(max(end, LEAST_RATE), MOST_RATE) for end in (rate - error, rate + error))
    return round(low, 3), round(high, 3)


def parse_batches(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        raise UsageError(f"the batch is {shown(text)}; write whole numbers, as in 1,8") from None
