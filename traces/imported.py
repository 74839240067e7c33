"""Runs of other engines: which facts their files hold, and which are unknown.

The header of an imported run holds an entry `imported` in its environment:
`{"source": ..., "unknown": [...], "counts": {...}}`. A run without that entry is SpecScope's own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.trace.events import Commit, Header

NO_TOKEN = -1
"""The id of a token that the file does not name."""
UNKNOWN_TEXT = "▒"
"""Shown for such a token."""

_PER_TOKEN = (
    "tokens_per_second",
    "tokens_per_second_per_sequence",
    "tokens_per_second_with_prefill",
    "decode_seconds",
    "ttft_ms",
    "tpot_ms",
)
_SPEED = (
    *_PER_TOKEN,
    "seconds",
    "draft_seconds_per_100_tokens",
    "verify_seconds_per_100_tokens",
    "c",
    "sp_degree",
    "wasted_device_seconds",
    "preempted_device_seconds",
    "target_forwards",
    "draft_forwards",
    "attention_cells",
    "tokens_per_target_forward",
)
_STEPS = (
    "drafted",
    "accepted",
    "rejected",
    "discarded",
    "acceptance_rate",
    "acceptance_rate_tested",
    "mean_accepted_length",
    "acceptance_length",
    "least_acceptance_length",
    "per_position",
    "per_level",
)
_ORDER = ("run_length", "dsi_acceptance", "least_acceptance_length")
FIGURES: dict[str, tuple[str, ...]] = {
    "times": _SPEED,
    "number of tokens": ("tokens", "tokens_per_target_forward"),
    "origin of each token": _PER_TOKEN,
    "accepted and rejected drafts": (*_STEPS, *_ORDER, "wasted_device_seconds", "preempted_device_seconds"),
    "order of the steps": _ORDER,
    "draft length of each step": (
        "rejected",
        "discarded",
        "acceptance_rate_tested",
        "per_position",
        "per_level",
    ),
    "forwards of the drafter": ("draft_forwards", "c", "draft_seconds_per_100_tokens"),
    "rows cached before each forward": ("attention_cells",),
    "prompt": (),
    "texts of the tokens": (),
    "ids of the tokens": (),
    "ids of rejected tokens": (),
    "probabilities": (),
}
"""The facts that a file may lack, and the figures that are unknown without each."""
_WAITING = ("both", "target_waits", "drafter_waits", "occupancy", "measured_occupancy")


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals of a run's verifications, for a file that does not list them in order."""

    histogram: tuple[int, ...]
    """At index a, the number of verifications that accepted a draft tokens."""
    drafted: int | None = None
    gamma: int | None = None
    """The draft length, if all verifications had the same."""
    tokens: int | None = None

    @property
    def accepted(self) -> int:
        """The number of accepted draft tokens."""
        return sum(number * times for number, times in enumerate(self.histogram))

    @property
    def steps(self) -> int:
        """The number of verifications."""
        return sum(self.histogram)


@dataclass(frozen=True, slots=True)
class Imported:
    """The origin of an imported run."""

    source: str
    """What wrote the file: `a response of vLLM`."""
    unknown: tuple[str, ...]
    """Keys of `FIGURES`."""
    counts: Counts | None = None
    """Of a run without rounds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of the header's environment."""
        entry: dict[str, Any] = {"source": self.source, "unknown": list(self.unknown)}
        if self.counts is not None:
            entry["counts"] = {**asdict(self.counts), "histogram": list(self.counts.histogram)}
        return entry

    @property
    def timed(self) -> bool:
        """Whether the file holds times."""
        return "times" not in self.unknown

    @property
    def figures(self) -> frozenset[str]:
        """The keys of the unknown figures."""
        keys = {key for fact in self.unknown for key in FIGURES[fact]}
        return frozenset(keys if self.timed else {*keys, *_WAITING})

    @property
    def sentence(self) -> str:
        """The origin and the unknown facts, in one or two sentences."""
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
    facts = tuple(fact for fact in FIGURES if fact in unknown)
    return Imported(source, facts, _counts(counts) if isinstance(counts, dict) else None)


def is_timed(header: Header) -> bool:
    """Return whether the times of a run's rows are facts."""
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
