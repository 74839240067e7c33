"""The events of a run, as frozen rows. Standard library only.

Times are integer nanoseconds since the run's start, also in virtual runs. Waiting times, occupancy
and all rates are computed from these rows, never stored. A trace is a `Header`, then rows in the
order in which they became known, then a `Footer`. `trace.py` holds a trace in memory, `jsonl.py`
reads and writes files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from specscope.engine.trace.ranges import Amount, Count, Id, Place, Range, Share, Size, Time, TokenId

SCHEMA = 7
"""Version of this format; older ones are read, newer ones refused. 2 added `document`, `copied`,
`part`, the power of `occupancy`, and cells and rank of `span`; 3 added `pooled`; 4 added `lossless`
of the header and the rule `typical`; 5 added the `occupancy` of other programs; 6 added `forked`,
`forecast`, `chain`, and the kinds `glue`, `branch` and `other`; 7 added `window` and the kind
`step`."""

OTHERS = "others"
"""In place of a device's name: the load of the whole machine by other programs."""
MEMBER = "member"
"""The load by a process that joined a recording; that of `OTHERS` has it, too, until its row."""
NO_DEVICES = (OTHERS, MEMBER)
TOO_BUSY = 0.5
"""Cores used by other programs from which on times are doubtful."""

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
PartKind = Literal["attention", "exchange"]
Stop = Literal["full", "uncertain", "end", "cancelled", "off", "load"]
Status = Literal["running", "done", "cancelled", "failed", "incomplete"]
Top: TypeAlias = tuple[tuple[TokenId, Share], ...]
"""(token id, probability), most probable first."""
Grams: TypeAlias = tuple[tuple[TokenId, ...], ...]
"""Rows of token ids."""


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
class Header:
    """The run's settings, models and devices."""

    tag: ClassVar[str] = "header"
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
    load, `load`; of another engine, `imported` (see `specscope.traces.imported`); of a replay,
    `whatif` (see `specscope.traces.whatif`)."""
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
class Span:
    """One piece of work on one device, usually one forward."""

    tag: ClassVar[str] = "span"
    id: Size
    """Numbered in order of submission."""
    device: str
    kind: SpanKind
    start: Time
    end: Time
    model: str
    """`target` or `drafter`."""
    step: Count
    """The round that submitted it; 0 is prefill."""
    sequence: Place
    """-1 for work on several sequences."""
    rows: Id
    """Rows fed to the forward."""
    context: Id
    """KV rows cached before it."""
    outcome: str
    """done or cancelled."""
    cells: Size = 0
    """Query-key cells that its attention computed, per layer and head, masked and padded ones
    included."""
    rank: Count = 0
    """The device's rank if several devices share the forward; the leader has rank 0 and the span id
    `id - rank`."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a fuzzy forward on one device: one layer's attention, or an exchange of outputs."""

    tag: ClassVar[str] = "part"
    span: Id
    """The forward's span on this device."""
    kind: PartKind
    """attention; or exchange: the devices exchange the outputs of a group of layers."""
    layer: Count
    """The layer; of an exchange, the first layer of its group."""
    start: Time
    end: Time


@dataclass(frozen=True, slots=True)
class Round:
    """One commit: the result of a verification."""

    tag: ClassVar[str] = "round"
    step: Count
    """From 1."""
    sequence: Place
    mode: str
    """plain, verify, pre-verify or post-verify."""
    drafted: Count
    """Draft tokens judged."""
    accepted: Count
    emitted: Count
    """Tokens committed, after the stop rule."""
    time: Time
    span: Id
    """The target's span."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one drafted token, or one token of the target's own (node -1)."""

    tag: ClassVar[str] = "decision"
    step: Count
    sequence: Place
    node: Place
    parent: Place
    position: Count
    token: TokenId
    p: Share | None
    q: Share | None
    u: Share | None
    rule: str
    """ratio, match, target or (lossy) typical; empty if discarded without a test."""
    outcome: str
    """accepted, rejected or discarded; for node -1 corrected, bonus or plain."""
    draft_span: Id
    """The drafter's span that produced it; -1 for none."""
    verify_span: Id
    """The target's span that decided it; -1 for none."""
    top_p: Top = ()
    top_q: Top = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """One token of the output."""

    tag: ClassVar[str] = "commit"
    step: Count
    sequence: Place
    position: Count
    """Position in the sequence; the first output token has the prompt's length."""
    token: TokenId
    origin: str
    """accepted, corrected, bonus or plain."""
    text: str
    """The text that this token adds; it may be empty, or complete an earlier token's character."""
    time: Time


@dataclass(frozen=True, slots=True)
class Document:
    """A reference document or a finished text for copied drafts, emitted before the first copy."""

    tag: ClassVar[str] = "document"
    document: Place
    tokens: tuple[TokenId, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """The source of a round's copied draft."""

    tag: ClassVar[str] = "copied"
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


@dataclass(frozen=True, slots=True)
class Pooled:
    """A round's use of a pool of n-grams: tried ones, learnt ones, and the window."""

    tag: ClassVar[str] = "pooled"
    step: Count
    sequence: Place
    model: str
    """The model of the window: `target` or `drafter`."""
    window: Grams
    """The levels of the look-ahead window in the round's last forward, and the model's tokens after
    the last level; may be empty."""
    tried: Grams
    """N-grams of the pool in the judged draft, each with its first token, part of the text."""
    gained: Grams
    """N-grams that the pool learnt, in order, with repetitions."""
    size: Size


@dataclass(frozen=True, slots=True)
class Forked:
    """A branch that was drafted while a round was verified, for one outcome of the verification."""

    tag: ClassVar[str] = "forked"
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
class Forecast:
    """What a round's best draft from suffix trees was expected to bring, before it was judged.

    The round judged this draft if it has a `Copied` row; otherwise a drafter's, or none.
    """

    tag: ClassVar[str] = "forecast"
    step: Count
    sequence: Place
    tree: str
    """`own`, the sequence's prompt and output; `finished`, other texts; empty without a draft."""
    match: Count
    """The number of last tokens that occur in the tree right before the draft."""
    occurrences: Size
    """Those of the match in the tree; in the own tree the end of the text is one of them."""
    score: Amount
    """Expected accepted tokens, by the counts of the tree."""
    drafter: Amount | None
    """Expected accepted tokens of a draft of the drafter, by earlier rounds; None without one."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One draft of a method whose draft length can adapt: the length asked for, and its end."""

    tag: ClassVar[str] = "chain"
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


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of a token id, emitted once before its first use."""

    tag: ClassVar[str] = "piece"
    token: TokenId
    text: str


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A measured sample of a device (NVML, psutil), independent of the spans."""

    tag: ClassVar[str] = "occupancy"
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
class Window:
    """What an engine counted in a stretch of time, as its log or its counters tell.

    A count is None where it is unknown. Times are since the first window's start.
    """

    tag: ClassVar[str] = "window"
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


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a run."""

    tag: ClassVar[str] = "footer"
    status: Status
    reasons: tuple[str, ...]
    """Per sequence: eos, stop, length, or empty."""
    texts: tuple[str, ...]
    time: Time
    error: str = ""


Row: TypeAlias = (
    Span
    | Part
    | Round
    | Decision
    | Commit
    | Document
    | Copied
    | Pooled
    | Forked
    | Forecast
    | Chain
    | Piece
    | Occupancy
    | Window
)
Event: TypeAlias = Header | Row | Footer
