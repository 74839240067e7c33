"""What a run leaves behind: frozen rows of facts. Standard library only.

Times are integer nanoseconds since the run's start (virtual ones too). Waiting, occupancy from spans and all
rates are derived from these rows, never stored. A trace is `Header`, then rows in the order they became known,
then `Footer`. `trace.py` holds one in memory, `jsonl.py` reads and writes files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

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
