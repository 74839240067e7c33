"""Runs of other engines: which facts their files hold, and which are unknown.

The header of an imported run holds an entry `imported` in its environment:
`{"source": ..., "unknown": [...], "counts": {...}}`. A run without that entry is SpecScope's own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from traces.definitions import FACTS, FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.trace.events import Commit, Header

NO_TOKEN = -1
"""The id of a token that the file does not name."""
UNKNOWN_TEXT = "▒"
"""Shown for such a token."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of a run's verifications, for a file that does not list them in order."""

    histogram: tuple[int, ...]
    """At index a, the number of verifications that accepted a draft tokens."""
    drafted: int | None = None
    gamma: int | None = None
    tokens: int | None = None

    @property
    def accepted(self) -> int:
        return sum(number * times for number, times in enumerate(self.histogram))

    @property
    def steps(self) -> int:
        return sum(self.histogram)


@dataclass(frozen=True, slots=True)
class Imported:
    """The origin of an imported run."""

    source: str
    unknown: tuple[str, ...]
    counts: Counts | None = None
    """Of a run without rounds."""

    def to_dict(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"source": self.source, "unknown": list(self.unknown)}
        if self.counts is not None:
            entry["counts"] = {**asdict(self.counts), "histogram": list(self.counts.histogram)}
        return entry

    @property
    def timed(self) -> bool:
        return "times" not in self.unknown

    @property
    def figures(self) -> frozenset[str]:
        return frozenset(key for key, figure in FIGURES.items() if {*figure.needs} & {*self.unknown})

    @property
    def sentence(self) -> str:
        missing = f" Not in the file: {', '.join(self.unknown)}." if self.unknown else ""
        return f"Imported from {self.source}.{missing}"


def origin(header: Header) -> Imported | None:
    """Return the origin of a run; None for SpecScope's own, and for an entry of another form."""
    entry: Any = header.environment.get("imported")
    if not isinstance(entry, dict):
        return None
    source, unknown, counts = (entry.get(name) for name in ("source", "unknown", "counts"))
    if not isinstance(source, str) or not isinstance(unknown, list | tuple):
        return None
    facts = tuple(fact for fact in FACTS if fact in unknown)
    return Imported(source, facts, _counts(counts) if isinstance(counts, dict) else None)


def is_timed(header: Header) -> bool:
    found = origin(header)
    return found is None or found.timed


def _counts(entry: Mapping[str, Any]) -> Counts | None:
    histogram: Any = entry.get("histogram")
    numbers: list[Any] = [entry.get(name) for name in ("drafted", "gamma", "tokens")]
    if not isinstance(histogram, list | tuple) or len(histogram) > 2**16:
        return None
    if not all(_natural(value) for value in (*histogram, *(n for n in numbers if n is not None))):
        return None
    return Counts(tuple(histogram), *numbers)


def _natural(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def shown_text(header: Header, commit: Commit) -> str:
    """Return the text of a token; of another engine's token without one, its id or a block."""
    if commit.text or origin(header) is None:
        return commit.text
    return f"{UNKNOWN_TEXT if commit.token == NO_TOKEN else commit.token} "
