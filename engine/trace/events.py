"""The events of a run, as frozen rows. Standard library only.

Times are integer nanoseconds since the run's start, also in virtual runs. Waiting times, occupancy
and all rates are computed from these rows, never stored. A trace is a `Header`, then rows in the
order in which they became known, then a `Footer`. `trace.py` holds a trace in memory, `jsonl.py`
reads and writes files.

A row is declared once, here: a class with its fields, closed sets and ranges, and its list in
`TraceRows`. Its form in files, its checks, its table in the database and its list follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from specscope.engine.schema import Range
from specscope.engine.trace.ranges import (
    LONGEST_DRAFT,
    Amount,
    Count,
    Id,
    Number,
    Place,
    Share,
    Size,
    Time,
    TokenId,
)

SCHEMA = 8
"""Version of this format; older ones are read, newer ones refused. 2 added `document`, `copied`,
`part`, the power of `occupancy`, and cells and rank of `span`; 3 added `pooled`; 4 added `lossless`
of the header and the rule `typical`; 5 added the `occupancy` of other programs; 6 added `forked`,
`forecast`, `chain`, and the kinds `glue`, `branch` and `other`; 7 added `window` and the kind
`step`; 8 added `routed`."""

OTHERS = "others"
"""In place of a device's name: the load of the whole machine by other programs."""
MEMBER = "member"
"""The load by a process that joined a recording; that of `OTHERS` has it, too, until its row."""
NO_DEVICES = (OTHERS, MEMBER)
TOO_BUSY = 0.5
"""Cores used by other programs from which on times are doubtful."""

# Closed sets. The database stores a text's index: a set only grows at its end, and only with a new
# `VERSION` of `traces/database/schema.py`, so that an older SpecScope refuses a code that it lacks.
SpanKind = Literal[
    "prefill",
    "draft",
    "verify",
    "pre-verify",
    "calibrate",
    "communicate",
    "sample",
    "glue",
    "branch",
    "other",
    "step",
]
DRAFTS = frozenset[SpanKind]({"draft", "glue", "branch"})
"""Kinds of spans that draft, or that only drafts need."""
SCORES = frozenset[SpanKind]({"verify", "pre-verify"})
"""Kinds of spans in which the target judges drafts, or makes tokens of its own."""
FORWARDS = frozenset[SpanKind]({*DRAFTS, *SCORES, "calibrate"})
"""Kinds of spans that are forwards while decoding."""
AFTER = frozenset[SpanKind]({"sample", "communicate"})
"""Kinds of spans that follow a forward, and are no part of it."""
SpanOutcome = Annotated[str, Literal["done", "cancelled"]]
PartKind = Literal["attention", "exchange"]
Role = Annotated[str, Literal["target", "drafter"]]
Mode = Annotated[str, Literal["plain", "verify", "pre-verify", "post-verify"]]
Rule = Annotated[str, Literal["", "ratio", "match", "target", "typical"]]
Outcome = Annotated[str, Literal["accepted", "rejected", "discarded", "corrected", "bonus", "plain"]]
Tree = Annotated[str, Literal["", "own", "finished"]]
Stop = Literal["full", "uncertain", "end", "cancelled", "off", "load"]
Status = Literal["running", "done", "cancelled", "failed", "incomplete"]
Top: TypeAlias = tuple[tuple[TokenId, Share], ...]
"""(token id, probability), most probable first."""
Grams: TypeAlias = tuple[tuple[TokenId, ...], ...]
"""Rows of token ids."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a trace's file."""

    tag: ClassVar[str]
    """The kind of line, in a file and in messages."""

    def __init_subclass__(cls) -> None:
        cls.tag = cls.__name__.lower()


@dataclass(frozen=True, slots=True)
class Row(Line):
    """A line between header and footer."""

    def fault(self) -> str:
        """Return how the row contradicts itself; empty if it does not."""
        return ""


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a run."""

    name: str
    """Unique in the run, for example `cpu:0`, `cuda:1`, `gpu0` (virtual)."""
    role: str
    """Its models: `drafter`, `target` or `drafter+target`."""
    label: str
    """Its name on screen: `CPU core 0 · drafter`."""
    kind: str
    """cpu, cuda or virtual."""


@dataclass(frozen=True, slots=True)
class Header(Line):
    """The run's settings, models and devices."""

    run_id: str
    created: str
    """ISO 8601, UTC."""
    method: str
    title: str
    config: dict[str, Any]
    prompts: tuple[str, ...]
    """The text of each sequence's prompt."""
    prompt_ids: tuple[tuple[TokenId, ...], ...]
    sampling: dict[str, Any]
    """temperature, top_k, top_p, seed."""
    limits: dict[str, Any]
    """max_new_tokens, stop, eos."""
    runtime: str
    """local-thread, local-process, ray, virtual."""
    profile: str
    """Name of the latency profile; empty if the times are measured."""
    devices: tuple[Device, ...]
    target_path: str
    drafter_path: str
    environment: dict[str, Any] = field(default_factory=dict)
    """Software versions, processor and host. On several nodes `clocks` (see
    `specscope.engine.cluster.ray_devices`); `open`, the settings that were planned, as given; in
    virtual runs also the profile's pair and the token source; with a drafting head its path; under
    load, `load`; of another engine, `imported` (see `specscope.traces.facts.imported`); of a
    replay, `whatif` (see `specscope.traces.whatif`)."""
    group: str = ""
    """Shared by the runs of one comparison."""
    lossless: bool = True
    """Whether the tokens have the target's distribution."""
    schema: Annotated[int, Range(1, SCHEMA)] = SCHEMA

    @property
    def virtual(self) -> bool:
        """Whether the times are computed by a latency profile."""
        return bool(self.profile)

    @property
    def clock(self) -> str:
        """The badge on every figure: measured or imported, and runtime; virtual, profile, pair.

        A replay begins with the run that it replays.
        """
        if "imported" in self.environment:
            return f"imported · {self.runtime}"
        if not self.virtual:
            return f"measured · {self.runtime}"
        pair, replayed = self.environment.get("profile_pair"), self.environment.get("whatif")
        badge = f"virtual · {self.profile} · {pair}" if pair else f"virtual · {self.profile}"
        return f"what-if of {replayed.get('run')} · {badge}" if isinstance(replayed, dict) else badge


@dataclass(frozen=True, slots=True)
class Span(Row):
    """One piece of work on one device, usually one forward."""

    id: Number
    """Numbered in order of submission."""
    device: str
    kind: SpanKind
    start: Time
    end: Time
    model: Role
    step: Count
    """The round that submitted it; 0 is prefill."""
    sequence: Place
    """-1 for work on several sequences."""
    rows: Id
    """Rows fed to the forward."""
    context: Id
    """KV rows cached before it."""
    outcome: SpanOutcome
    cells: Size = 0
    """Query-key cells that its attention computed, per layer and head, masked and padded ones
    included."""
    rank: Count = 0
    """The device's rank if several devices share the forward; the leader has rank 0 and the span id
    `id - rank`."""

    def fault(self) -> str:
        if self.start > self.end:
            return f"span {self.id} lasts from {self.start} to {self.end}"
        return ""


@dataclass(frozen=True, slots=True)
class Part(Row):
    """A part of a fuzzy forward on one device: one layer's attention, or an exchange of outputs."""

    span: Id
    """The forward's span on this device."""
    kind: PartKind
    """attention; or exchange: the devices exchange the outputs of a group of layers."""
    layer: Count
    """The layer; of an exchange, the first layer of its group."""
    start: Time
    end: Time

    def fault(self) -> str:
        if self.start > self.end:
            return f"a part of span {self.span} lasts from {self.start} to {self.end}"
        return ""


@dataclass(frozen=True, slots=True)
class Round(Row):
    """One commit: the result of a verification."""

    step: Count
    """From 1."""
    sequence: Place
    mode: Mode
    drafted: Count
    """Draft tokens judged."""
    accepted: Count
    emitted: Count
    """Tokens committed, after the stop rule."""
    time: Time
    span: Id
    """The target's span."""

    def fault(self) -> str:
        if self.accepted > self.drafted:
            return f"step {self.step} accepted {self.accepted} of {self.drafted} drafted tokens"
        return ""


@dataclass(frozen=True, slots=True)
class Decision(Row):
    """The outcome of one drafted token, or one token of the target's own (node -1)."""

    step: Count
    sequence: Place
    node: Place
    parent: Place
    position: Count
    token: TokenId
    p: Share | None
    q: Share | None
    u: Share | None
    rule: Rule
    """typical is lossy; empty if discarded without a test."""
    outcome: Outcome
    """For node -1 corrected, bonus or plain."""
    draft_span: Id
    """The drafter's span that produced it; -1 for none."""
    verify_span: Id
    """The target's span that decided it; -1 for none."""
    top_p: Top = ()
    top_q: Top = ()


@dataclass(frozen=True, slots=True)
class Commit(Row):
    """One token of the output."""

    step: Count
    sequence: Place
    position: Count
    """Position in the sequence; the first output token has the prompt's length."""
    token: TokenId
    origin: Outcome
    """accepted, corrected, bonus or plain."""
    text: str
    """The text that this token adds; it may be empty, or complete an earlier token's character."""
    time: Time


@dataclass(frozen=True, slots=True)
class Document(Row):
    """A reference document or a finished text for copied drafts, emitted before the first copy."""

    document: Place
    tokens: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class Copied(Row):
    """The source of a round's copied draft."""

    step: Count
    sequence: Place
    document: Place
    """Index of the reference document; -1 is the sequence itself, prompt and output."""
    start: Count
    """Index of the first copied token in it."""
    match: Count
    """The number of tokens right before `start` that equal the last ones of the prefix."""
    length: Count
    """Tokens copied, which are all tokens that the round judged."""

    def fault(self) -> str:
        if self.start < self.match:
            return f"a copy has start {self.start}, match {self.match} and length {self.length}"
        return ""


@dataclass(frozen=True, slots=True)
class Pooled(Row):
    """A round's use of a pool of n-grams: tried ones, learnt ones, and the window."""

    step: Count
    sequence: Place
    model: Role
    """The model of the window."""
    window: Grams
    """The levels of the look-ahead window in the round's last forward, and the model's tokens after
    the last level; may be empty."""
    tried: Grams
    """N-grams of the pool in the judged draft, each with its first token, part of the text."""
    gained: Grams
    """N-grams that the pool learnt, in order, with repetitions."""
    size: Number

    def fault(self) -> str:
        if all((*self.tried, *self.gained)):
            return ""
        return f"step {self.step} has an n-gram without tokens"


@dataclass(frozen=True, slots=True)
class Forked(Row):
    """A branch that was drafted while a round was verified, for one outcome of the verification."""

    step: Count
    """The verified round."""
    sequence: Place
    place: Count
    """Accepted tokens of the outcome."""
    token: TokenId
    """The target's own token of the outcome, as guessed; not a drafted token."""
    q: Share
    """The drafter's probability of it, the plain softmax."""
    length: Count
    """Tokens drafted after it. Those of a branch that was not taken are discarded."""
    taken: bool
    """Whether the verification had this outcome and the output went on: its tokens, and tokens that
    were drafted after them, are then the next draft."""


@dataclass(frozen=True, slots=True)
class Forecast(Row):
    """What a round's best draft from suffix trees was expected to bring, before it was judged.

    The round judged this draft if it has a `Copied` row; otherwise a drafter's, or none.
    """

    step: Count
    sequence: Place
    tree: Tree
    """`own`, the sequence's prompt and output; `finished`, other texts; empty without a draft."""
    match: Count
    """The number of last tokens that occur in the tree right before the draft."""
    occurrences: Number
    """Those of the match in the tree; in the own tree the end of the text is one of them."""
    score: Amount
    """Expected accepted tokens, by the counts of the tree."""
    drafter: Amount | None
    """Expected accepted tokens of a draft of the drafter, by earlier rounds; None without one."""


@dataclass(frozen=True, slots=True)
class Chain(Row):
    """One draft of a method whose draft length can adapt: the length asked for, and its end."""

    step: Count
    """The round that asked for it; of a branch, the round that verifies it."""
    sequence: Place
    position: Count
    """Position of its first token in the sequence."""
    asked: Count
    """Tokens asked for; 0 if drafting has ended for good."""
    drafted: Count
    """Tokens drafted, without those of a cancelled job."""
    stop: Stop
    """Why it ended. full: all tokens asked for; uncertain: after a token of low q; end: the output
    takes no more; cancelled: with its job; off: drafting has ended for good; load: under load, as
    many as the policy allowed."""
    span: Id
    """The span of its first forward; -1 for none."""

    def fault(self) -> str:
        if self.drafted > self.asked:
            return f"a draft of {self.drafted} tokens was asked for {self.asked}"
        return ""


@dataclass(frozen=True, slots=True)
class Piece(Row):
    """The text of a token id, emitted once before its first use."""

    token: TokenId
    text: str


@dataclass(frozen=True, slots=True)
class Occupancy(Row):
    """A measured sample of a device (NVML, psutil), independent of the spans."""

    device: str
    """A device of the header; or `OTHERS`, once at the end of a measured run; or `MEMBER`."""
    time: Time
    busy: Amount
    """Utilisation of the device by all processes, 0 to 1; of `OTHERS` the share of all cores that
    other programs used since the run's start; of `MEMBER` what one used since its last row, as a
    share of all cores since the run's start."""
    memory: Size
    """Bytes: on a CPU the worker's resident memory, on a GPU the memory in use on the card."""
    power: Amount | None = None
    """Watts, if the device reports it."""


@dataclass(frozen=True, slots=True)
class Window(Row):
    """What an engine counted in a stretch of time, as its log or its counters tell.

    A count is None where it is unknown. Times are since the first window's start.
    """

    start: Time
    end: Time
    """Equal to `start` if the length is unknown."""
    drafter: str
    """The drafter that these drafts are of, where an engine has several; empty for all of them."""
    label: str
    """The engine's name for it, such as a request's number; may be empty."""
    steps: Size | None
    """Forwards of the target for the output, each sequence counted."""
    drafts: Size | None
    """Those that verified a draft."""
    drafted: Size | None
    accepted: Size | None
    places: tuple[Size, ...]
    """Accepted tokens by place in the draft; empty if unknown."""
    tokens: Size | None
    """Of the output."""
    busy: Time | None
    """Nanoseconds of decoding that made these tokens."""
    drafting: Time | None
    """Nanoseconds of these for drafts."""
    running: Amount | None
    """Requests that were decoded at once."""

    def fault(self) -> str:
        if len(self.places) > LONGEST_DRAFT:
            return f"a window has {len(self.places)} places; at most {LONGEST_DRAFT} are read"
        if self.drafted is not None and (self.accepted or 0) > self.drafted:
            return f"a window accepted {self.accepted} of {self.drafted} drafted tokens"
        if self.start > self.end:
            return f"a window lasts from {self.start} to {self.end}"
        return ""


@dataclass(frozen=True, slots=True)
class Footer(Line):
    """The end of a run."""

    status: Status
    reasons: tuple[str, ...]
    """Per sequence: eos, stop, length, or empty."""
    texts: tuple[str, ...]
    time: Time
    error: str = ""


Event: TypeAlias = Header | Row | Footer


@dataclass(frozen=True, slots=True)
class Routed(Row):
    """What a forward of a mixture of experts read on its device, over all layers there."""

    span: Id
    experts: Size
    """Experts that its rows chose; one for all rows is not counted."""
    held: Size
    """Experts of these layers."""

    def fault(self) -> str:
        if self.experts > self.held:
            return f"span {self.span} read {self.experts} of {self.held} experts"
        return ""


@dataclass(kw_only=True)
class TraceRows:
    """The rows of a trace by kind, in the order recorded, and the texts of token ids."""

    pieces: dict[int, str] = field(default_factory=dict[int, str])
    spans: list[Span] = field(default_factory=list[Span])
    parts: list[Part] = field(default_factory=list[Part])
    rounds: list[Round] = field(default_factory=list[Round])
    decisions: list[Decision] = field(default_factory=list[Decision])
    commits: list[Commit] = field(default_factory=list[Commit])
    documents: list[Document] = field(default_factory=list[Document])
    copies: list[Copied] = field(default_factory=list[Copied])
    pooled: list[Pooled] = field(default_factory=list[Pooled])
    forks: list[Forked] = field(default_factory=list[Forked])
    forecasts: list[Forecast] = field(default_factory=list[Forecast])
    chains: list[Chain] = field(default_factory=list[Chain])
    occupancy: list[Occupancy] = field(default_factory=list[Occupancy])
    windows: list[Window] = field(default_factory=list[Window])
    routed: list[Routed] = field(default_factory=list[Routed])


@cache
def types_of(kind: type[Line | Device]) -> Mapping[str, Any]:
    """Return the type of each field, with its closed set or range."""
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: hints[f.name] for f in fields(kind)}


LISTS: dict[type[Row], str] = {
    get_args(hint)[0]: name for name, hint in get_type_hints(TraceRows).items() if get_origin(hint) is list
}
"""The list of each kind of row; `Piece` has none."""
KINDS: tuple[type[Row], ...] = (Piece, *LISTS)
"""All kinds of rows, in the order of a file of a trace."""
