"""What a run leaves behind: frozen rows of facts, and their JSONL form. Standard library only.

Times are integer nanoseconds since the run's start (virtual ones too). Waiting, occupancy from spans and all
rates are derived from these rows, never stored. A trace is `Header`, then rows in the order they became known,
then `Footer`; a file without a footer is a run that ended badly and is shown as `incomplete`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import IO, Any, ClassVar, Literal, TypeAlias, get_args

SCHEMA = 4
"""Version of this format; readers take older ones and refuse a newer one. 2 added `document`, `copied`,
`part`, the power of `occupancy`, and cells and rank of `span`; 3 added `pooled`; 4 added `lossless` of the header and the rule `typical`."""

SpanKind = Literal["prefill", "draft", "verify", "pre-verify", "calibrate", "communicate", "sample"]
PartKind = Literal["attention", "exchange"]
Status = Literal["running", "done", "cancelled", "failed", "incomplete"]
Top: TypeAlias = tuple[tuple[int, float], ...]
"""(token id, probability), most probable first."""
Grams: TypeAlias = tuple[tuple[int, ...], ...]
"""Rows of token ids."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a run."""

    name: str
    """Unique in the run, for example `cpu:0`, `cuda:1`, `gpu0` (virtual)."""
    role: str
    """What it works on: `drafter`, `target`, `drafter+target`."""
    label: str
    """For people: `CPU core 0 · drafter`."""
    kind: str
    """cpu, cuda or virtual."""


@dataclass(frozen=True, slots=True)
class Header:
    """Everything known before the first token."""

    tag: ClassVar[str] = "header"
    run_id: str
    created: str
    """ISO 8601, UTC."""
    method: str
    title: str
    config: dict[str, Any]
    prompts: tuple[str, ...]
    """The text of each sequence's prompt."""
    prompt_ids: tuple[tuple[int, ...], ...]
    sampling: dict[str, Any]
    """temperature, top_k, top_p, seed."""
    limits: dict[str, Any]
    """max_new_tokens, stop, eos."""
    runtime: str
    """local-thread, local-process, virtual."""
    profile: str
    """Name of the latency profile; empty when the times are measured."""
    devices: tuple[Device, ...]
    target_path: str
    drafter_path: str
    environment: dict[str, Any] = field(default_factory=dict)
    """Versions, processor, host facts; in virtual runs the profile's pair and token source; where one drafts, the head's path."""
    group: str = ""
    """Runs of one comparison share this."""
    lossless: bool = True
    """Whether the rules that decide its tokens keep the target's distribution."""
    schema: int = SCHEMA

    @property
    def virtual(self) -> bool:
        """Whether the times come from a latency profile."""
        return bool(self.profile)

    @property
    def clock(self) -> str:
        """The badge that stands on every figure."""
        return f"virtual · {self.profile}" if self.virtual else f"measured · {self.runtime}"


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work on one device, usually one forward."""

    tag: ClassVar[str] = "span"
    id: int
    """Numbered in order of submission."""
    device: str
    kind: SpanKind
    start: int
    end: int
    model: str
    """`target` or `drafter`."""
    step: int
    """The round during which it was asked for; 0 is prefill."""
    sequence: int
    """-1 for work on several at once."""
    rows: int
    """Rows fed to the forward."""
    context: int
    """Rows already cached."""
    outcome: str
    """done, or cancelled."""
    cells: int = 0
    """Query-key cells its attention computed, in one layer and one head, masked and padding ones included."""
    rank: int = 0
    """Where several devices do one forward together: which of them this is. The leader, 0, has the id that is less by this."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a fuzzy forward on one device: the attention of a layer in a group, or the exchange of a group's outputs."""

    tag: ClassVar[str] = "part"
    span: int
    """The forward's span on this device."""
    kind: PartKind
    """attention, or exchange: bringing the outputs of a group together."""
    layer: int
    """The layer; of an exchange the first of its group."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Round:
    """One commit: what a verification decided."""

    tag: ClassVar[str] = "round"
    step: int
    """From 1."""
    sequence: int
    mode: str
    """plain, verify, pre-verify or post-verify."""
    drafted: int
    """Draft tokens judged."""
    accepted: int
    emitted: int
    """Tokens committed, after the stop rule."""
    time: int
    span: int
    """The target's span."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The fate of one drafted token, or one token of the target's own (node -1)."""

    tag: ClassVar[str] = "decision"
    step: int
    sequence: int
    node: int
    parent: int
    position: int
    token: int
    p: float | None
    q: float | None
    u: float | None
    rule: str
    """ratio, match, target or (lossy) typical; empty when discarded untested."""
    outcome: str
    """accepted, rejected, discarded; corrected, bonus, plain for node -1."""
    draft_span: int
    """The drafter's span that produced it; -1 for none."""
    verify_span: int
    """The target's span that decided it; -1 for none."""
    top_p: Top = ()
    top_q: Top = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """One token of the output."""

    tag: ClassVar[str] = "commit"
    step: int
    sequence: int
    position: int
    """Position in the sequence; the first output token has the prompt's length."""
    token: int
    origin: str
    """accepted, corrected, bonus or plain."""
    text: str
    """What this token adds to the text: one incremental decode, so it may be empty, or end an earlier one's character."""
    time: int


@dataclass(frozen=True, slots=True)
class Document:
    """A reference document that drafts are copied from, sent before the first copy."""

    tag: ClassVar[str] = "document"
    document: int
    """Its index, from 0."""
    tokens: tuple[int, ...]
    """Its token ids."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Where a round's draft was copied from, when it was a copy."""

    tag: ClassVar[str] = "copied"
    step: int
    sequence: int
    document: int
    """Index of the reference document; -1 is the sequence itself, prompt and output."""
    start: int
    """Index of the first copied token in it."""
    match: int
    """Tokens matched: those right before `start`, equal to the last ones of the prefix."""
    length: int
    """Tokens copied: all that the round judged."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """What a round did with a pool of n-grams: those it tried, those it learnt, and the window that feeds the pool."""

    tag: ClassVar[str] = "pooled"
    step: int
    sequence: int
    model: str
    """Whose window it is: `target` or `drafter`."""
    window: Grams
    """The look-ahead window of the round's last forward, level by level, and below it what the model said; may be empty."""
    tried: Grams
    """N-grams of the pool that the judged draft tried, each with the token it comes after."""
    gained: Grams
    """N-grams that the pool took, in order; one may come again."""
    size: int
    """N-grams in the pool after the round."""


@dataclass(frozen=True, slots=True)
class Piece:
    """How a token id reads, sent once before its first use in a run."""

    tag: ClassVar[str] = "piece"
    token: int
    text: str


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A measured sample of a device (NVML, psutil), apart from what the spans say."""

    tag: ClassVar[str] = "occupancy"
    device: str
    time: int
    busy: float
    """0 to 1: of the device, whoever keeps it busy."""
    memory: int
    """Bytes: resident memory of the worker on a CPU, in use on the whole card on a GPU."""
    power: float | None = None
    """Watts, where the device says it."""


@dataclass(frozen=True, slots=True)
class Footer:
    """How the run ended."""

    tag: ClassVar[str] = "footer"
    status: Status
    reasons: tuple[str, ...]
    """Per sequence: eos, stop, length, or empty."""
    texts: tuple[str, ...]
    """Per sequence: the text."""
    time: int
    error: str = ""


Row: TypeAlias = Span | Part | Round | Decision | Commit | Document | Copied | Pooled | Piece | Occupancy
Event: TypeAlias = Header | Row | Footer
_TYPES: dict[str, type[Any]] = {t.tag: t for t in (Header, *get_args(Row), Footer)}


@dataclass
class Trace:
    """A run in memory: its header, its rows by kind, and its footer once it ended."""

    header: Header
    spans: list[Span] = field(default_factory=list[Span])
    parts: list[Part] = field(default_factory=list[Part])
    rounds: list[Round] = field(default_factory=list[Round])
    decisions: list[Decision] = field(default_factory=list[Decision])
    commits: list[Commit] = field(default_factory=list[Commit])
    documents: list[Document] = field(default_factory=list[Document])
    copies: list[Copied] = field(default_factory=list[Copied])
    pooled: list[Pooled] = field(default_factory=list[Pooled])
    pieces: dict[int, str] = field(default_factory=dict[int, str])
    occupancy: list[Occupancy] = field(default_factory=list[Occupancy])
    footer: Footer | None = None

    def add(self, event: Row | Footer) -> None:
        """Take one event."""
        match event:
            case Span():
                self.spans.append(event)
            case Part():
                self.parts.append(event)
            case Round():
                self.rounds.append(event)
            case Decision():
                self.decisions.append(event)
            case Commit():
                self.commits.append(event)
            case Document():
                self.documents.append(event)
            case Copied():
                self.copies.append(event)
            case Pooled():
                self.pooled.append(event)
            case Piece():
                self.pieces[event.token] = event.text
            case Occupancy():
                self.occupancy.append(event)
            case Footer():
                self.footer = event

    @classmethod
    def of(cls, events: Iterable[Event]) -> Trace:
        """Build a trace from its events; the first one is the header."""
        stream = iter(events)
        first = next(stream, None)
        if not isinstance(first, Header):
            raise ValueError("a trace starts with its header")
        trace = cls(first)
        for event in stream:
            if isinstance(event, Header):
                raise ValueError("a trace has one header; this file holds a second one")
            trace.add(event)
        return trace

    def rows(self) -> Iterator[Row]:
        """All rows by kind: pieces, spans, parts, rounds, decisions, commits, documents, copies, pools, occupancy."""
        yield from (Piece(t, s) for t, s in self.pieces.items())
        yield from self.spans
        yield from self.parts
        yield from self.rounds
        yield from self.decisions
        yield from self.commits
        yield from self.documents
        yield from self.copies
        yield from self.pooled
        yield from self.occupancy

    def events(self) -> Iterator[Event]:
        """Header, rows, footer."""
        yield self.header
        yield from self.rows()
        if self.footer is not None:
            yield self.footer

    @property
    def status(self) -> Status:
        """How the run ended; `running` without a footer."""
        return self.footer.status if self.footer else "running"

    @property
    def text(self) -> str:
        """The text of the first sequence."""
        if self.footer:
            return self.footer.texts[0] if self.footer.texts else ""
        return "".join(c.text for c in self.commits if c.sequence == 0)

    def token_ids(self, sequence: int = 0) -> list[int]:
        """Output token ids of one sequence."""
        return [c.token for c in self.commits if c.sequence == sequence]


def to_json(event: Event) -> str:
    """Return one JSONL line, without the line end. Not-a-number becomes null."""
    row = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in asdict(event).items()}
    return json.dumps({"event": event.tag, **row}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def from_json(line: str) -> Event:
    """Return the event of one JSONL line.

    Raises:
        ValueError: The line is not JSON, of unknown kind, of a newer schema, or its fields are not the expected ones.
    """
    row = json.loads(line)
    kind = _TYPES.get(row.pop("event", "")) if isinstance(row, dict) else None
    if kind is None:
        raise ValueError(f"not a trace event: {line[:60]!r}")
    if row.get("schema", SCHEMA) > SCHEMA:
        raise ValueError(
            f"the trace has schema {row['schema']}, this SpecScope reads up to {SCHEMA}; please update"
        )
    expected = {f.name for f in fields(kind)}
    if unknown := set(row) - expected:
        raise ValueError(f"a {kind.tag} has no field {', '.join(sorted(unknown))}")
    if "devices" in row:
        row["devices"] = [Device(**d) for d in row["devices"]]
    try:
        return kind(**{k: _frozen(v) for k, v in row.items()})
    except TypeError as e:
        raise ValueError(f"a {kind.tag} is incomplete: {e}") from None


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, list) else value


def write_jsonl(trace: Trace, file: IO[str]) -> None:
    """Write the trace, one event a line."""
    for event in trace.events():
        file.write(to_json(event) + "\n")


def read_jsonl(lines: Iterable[str]) -> Trace:
    """Read one trace; a missing footer makes it incomplete.

    Raises:
        ValueError: A line is not an event of this format; the message names the line.
    """

    def parse() -> Iterator[Event]:
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    yield from_json(line)
                except (ValueError, TypeError) as e:
                    raise ValueError(f"line {number}: {e}") from None

    trace = Trace.of(parse())
    if trace.footer is None:
        last = max((s.end for s in trace.spans), default=0)
        texts = tuple(
            "".join(c.text for c in trace.commits if c.sequence == i)
            for i in range(len(trace.header.prompts))
        )
        trace.footer = Footer("incomplete", ("",) * len(texts), texts, last, "the run ended without a footer")
    return trace


def as_row(event: Event) -> Mapping[str, Any]:
    """Return an event's fields as a plain mapping."""
    return asdict(event)
