"""Runs of other engines and programs: which facts their files hold, and which are unknown.

The header of an imported run holds an entry `imported` in its environment:
`{"source": ..., "unknown": [...], "counts": {...}}`; that of a run that `specscope.record` recorded
an entry `recorded`, whose `unknown` is found when its file is read. A run without either is
SpecScope's own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specscope.engine.trace.events import DRAFTS, FORWARDS, OTHERS
from specscope.engine.trace.header import SERVER, STATED
from specscope.engine.trace.ranges import NO_TOKEN
from specscope.engine.trace.recorder import RECORDED
from specscope.traces.facts.definitions import FACTS, FIGURES
from specscope.traces.facts.waiting import divided

if TYPE_CHECKING:
    from collections.abc import Mapping

    from specscope.engine.trace.events import Commit, Header
    from specscope.engine.trace.trace import Trace

TEXTS = "texts of the tokens"
"""The fact without which ids or blocks are shown."""
COUNTED = (
    "origin of each token",
    "order of the steps",
    "draft length of each step",
    "forwards of the drafter",
    "span of each draft",
    "rows cached before each forward",
    "prompt",
    TEXTS,
    "ids of the tokens",
    "ids of rejected tokens",
    "probabilities",
    "load by other programs",
    "work inside each step",
)
"""Facts that windows of counts never tell."""
SPANS_OF_DRAFTS = "span of each draft"
CACHED = "rows cached before each forward"
LOAD = "load by other programs"
INSIDE = "work inside each step"
FED = FORWARDS | {"prefill"}
"""Kinds of spans that feed rows to a model; one of 0 rows, a search for n-grams, feeds none."""
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
    known: tuple[str, ...] = ()
    """The figures that its windows of counts determine; empty without windows."""
    stated: Mapping[str, float] = field(default_factory=dict[str, float])
    """Figures that the file states itself, whose rows do not determine them."""
    recorded: bool = False
    """Whether a program recorded it by `specscope.record`."""
    notes: tuple[str, ...] = ()
    """Of a run on a server, whether its totals agree."""
    server: bool = False
    prompt_tokens: tuple[int, ...] = ()
    """Tokens of the prompt of each request, in the order of its windows; -1 is unknown."""
    dated: bool = False
    """Whether the date is that of the request, and not that of the import."""

    def to_dict(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"source": self.source, "unknown": list(self.unknown)}
        if self.known:
            entry["known"] = list(self.known)
        if any(length >= 0 for length in self.prompt_tokens):
            entry["prompt_tokens"] = list(self.prompt_tokens)
        if self.dated:
            entry["dated"] = True
        if self.counts is not None:
            entry["counts"] = {**asdict(self.counts), "histogram": list(self.counts.histogram)}
        if self.stated:
            entry["stated"] = dict(self.stated)
        return entry

    @property
    def timed(self) -> bool:
        return "times" not in self.unknown

    @property
    def figures(self) -> frozenset[str]:
        """The figures that are unknown; a recorder does not see the cells of attention."""
        never = {"attention_cells"} if self.recorded else set[str]()
        if self.known:
            return frozenset(FIGURES) - {*self.known}
        lacking = (key for key, figure in FIGURES.items() if {*figure.needs} & {*self.unknown})
        return frozenset((*lacking, *never)) - self.stated.keys()

    @property
    def sentence(self) -> str:
        unknown = ", ".join(self.unknown)
        if self.recorded:
            what = "Not reported by the server" if self.server else "Not recorded"
            return " ".join((*self.notes, *([f"{what}: {unknown}."] if unknown else [])))
        if self.known:
            return f"Imported from {self.source}, which tells counts and no single tokens."
        return f"Imported from {self.source}.{f' Not in the file: {unknown}.' if unknown else ''}"


def origin(header: Header) -> Imported | None:
    """Return the origin of a run; None for SpecScope's own."""
    entry: Any = header.environment.get(RECORDED)
    recorded = entry is not None
    if entry is None and (entry := header.environment.get("imported")) is None:
        return None
    unknown, counts = entry.get("unknown", ()), entry.get("counts")
    source = header.title if recorded else entry.get("source", "")
    facts = tuple(fact for fact in FACTS if fact in unknown)
    server: Any = header.environment.get(SERVER)
    notes = tuple(server.get("notes", ())) if server else ()
    known = tuple(entry.get("known", ()))
    stated = {name: float(value) for name, value in entry.get("stated", {}).items() if name in STATED}
    return Imported(
        source,
        facts,
        _counts(counts) if counts else None,
        known,
        stated,
        recorded,
        notes,
        server=bool(server),
        prompt_tokens=tuple(entry.get("prompt_tokens", ())),
        dated=bool(entry.get("dated")),
    )


def _counts(entry: Mapping[str, Any]) -> Counts:
    numbers = (entry.get(name) for name in ("drafted", "gamma", "tokens"))
    return Counts(tuple(entry.get("histogram", ())), *numbers)


def is_foreign(header: Header) -> bool:
    """Return whether the run is of another engine, so that its speed is compared with no run's."""
    found = origin(header)
    return found is not None and not found.recorded


def is_timed(header: Header) -> bool:
    found = origin(header)
    return found is None or found.timed


def shown_text(header: Header, commit: Commit) -> str:
    """Return the text of a token; of another engine's token without one, its id or a block."""
    found = origin(header)
    if commit.text or found is None or TEXTS not in found.unknown:
        return commit.text
    return shown_id(commit)


def shown_id(commit: Commit) -> str:
    return f"{UNKNOWN_TEXT if commit.token == NO_TOKEN else commit.token} "


def shown_piece(trace: Trace, token: int) -> str:
    """Return the text of a token id alone; without one, the id or a block."""
    if token == NO_TOKEN:
        return UNKNOWN_TEXT
    return trace.pieces.get(token, "" if origin(trace.header) is None else f"{token} ")


def with_unknown(trace: Trace) -> Trace:
    """Return a recorded trace whose header names what its rows leave unknown; another as it is."""
    entry = trace.header.environment.get(RECORDED)
    if entry is None:
        return trace
    unknown = [fact for fact, known in _known_facts(trace).items() if not known]
    facts = {**trace.header.environment, RECORDED: {**entry, "unknown": unknown}}
    trace.header = replace(trace.header, environment=facts)
    return trace


def _known_facts(trace: Trace) -> dict[str, bool]:
    """Return fact -> whether the rows of a recording hold it, or may hold it while it runs."""
    drafted = [d for d in trace.decisions if d.node >= 0]
    tested = [d for d in drafted if d.outcome != "discarded"]
    drafting = [s for s in trace.spans if s.kind in DRAFTS]
    decoded = bool(trace.commits)
    running = trace.status == "running"
    begun = decoded or running
    loads = [row for row in trace.occupancy if row.device == OTHERS]
    told = trace.header.environment.get(SERVER, {}).get("unknown", ())
    return {
        "times": bool(trace.spans) or running,
        "number of tokens": begun,
        "origin of each token": begun,
        "accepted and rejected drafts": begun,
        "order of the steps": begun,
        "draft length of each step": begun,
        "forwards of the drafter": bool(drafting) or not drafted,
        SPANS_OF_DRAFTS: not drafting or (begun and all(d.draft_span >= 0 for d in drafted)),
        CACHED: all(min(s.rows, s.context) >= 0 for s in trace.spans if s.kind in FED and s.rows),
        "prompt": all(trace.header.prompt_ids),
        TEXTS: bool(trace.pieces) or not decoded,
        "ids of the tokens": all(c.token != NO_TOKEN for c in trace.commits),
        "ids of rejected tokens": all(d.token != NO_TOKEN for d in drafted),
        LOAD: bool(loads) or running or not trace.spans,
        "probabilities": not tested or any(d.p is not None or d.q is not None for d in tested),
        INSIDE: divided(trace),
    } | dict.fromkeys(told, False)
