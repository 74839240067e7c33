"""A method in a place at a batch size: what it brings, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, hypot, log
from typing import TYPE_CHECKING, Any, NamedTuple

from specscope.traces.advise.places import Seating, titled

if TYPE_CHECKING:
    from specscope.engine.cluster.capacity import Kept
    from specscope.engine.trace.trace import Trace


class Likely(NamedTuple):
    """A number with its lowest and highest likely value."""

    low: float
    mid: float
    high: float

    @property
    def width(self) -> float:
        return self.high / self.low

    def __str__(self) -> str:
        ends = dict.fromkeys(f"{end:.2f}" for end in (self.low, self.high))
        return " to ".join(ends)


@dataclass(frozen=True, slots=True)
class Option:
    """A method in a place at a batch size, and what it brings."""

    way: Seating
    batch: int
    config: Mapping[str, Any]
    speed: Likely
    """Times the speed of plain decoding in its best place."""
    parts: Mapping[str, Likely]
    """The range by each of `PARTS` alone."""
    tokens_per_second: float
    """Of all sequences, decoding only."""
    kept: Mapping[str, Sequence[Kept]] = field(repr=False)
    """What each card holds."""
    traces: tuple[Trace, ...] = field(default=(), repr=False)
    drafts: str = ""
    """Where its drafts are from, if not from a single rate."""

    @property
    def key(self) -> str:
        return self.way.entrant.key

    @property
    def title(self) -> str:
        return titled(self.way.entrant)

    @property
    def dominant(self) -> str:
        """The part that makes most of the range."""
        return max(self.parts, key=lambda part: self.parts[part].width)

    def facts(self) -> dict[str, Any]:
        rounded = {name: [round(x, 4) for x in part] for name, part in self.parts.items()}
        return {
            "method": self.key,
            "title": self.title,
            "batch": self.batch,
            "target_cards": self.way.target,
            "drafter_cards": self.way.drafter,
            "cards": self.way.total,
            "engines": self.way.engines,
            "place": self.way.words(),
            "config": dict(self.config),
            "speedup": round(self.speed.mid, 4),
            "low": round(self.speed.low, 4),
            "high": round(self.speed.high, 4),
            "parts": rounded,
            "dominant": self.dominant if self.parts else None,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "tokens_per_second_per_card": round(self.tokens_per_second / self.way.total, 2),
            "memory": {
                card: [
                    {"model": part.named, "dtype": part.model.dtype, "bytes": part.total} for part in parts
                ]
                for card, parts in _on_all_cards(self.way, self.kept)
            },
            "drafts": self.drafts,
            "runs": [trace.header.run_id for trace in self.traces],
        }


def _on_all_cards(way: Seating, kept: Mapping[str, Sequence[Kept]]) -> Iterator[tuple[str, Sequence[Kept]]]:
    """Yield what each card of all engines holds."""
    for engine in range(way.engines):
        for card, parts in kept.items():
            yield f"gpu{int(card.removeprefix('gpu')) + engine * way.cards}", parts


def combined(mid: float, parts: Sequence[Likely]) -> Likely:
    """Return a number's range from the ranges of independent parts."""
    low = hypot(*(log(part.mid / part.low) for part in parts))
    high = hypot(*(log(part.high / part.mid) for part in parts))
    return Likely(mid * exp(-low), mid, mid * exp(high))
