"""What a run asks of a worker, and what comes back. Plain frozen data: it crosses threads and processes.

Jobs are idempotent on the prefix: a worker forwards only what comes after the longest prefix it already caches.
They have no slots: a frozen class with slots takes several times as long to pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from engine.drafters.tree import TreeShape
from engine.model.fuzzy import PartTime
from engine.model.language import LanguageModel
from engine.types import Draft, Packing, Prefix, Sampling, Typical

if TYPE_CHECKING:
    from engine.heads.drafting import Head, Work


@dataclass(frozen=True)
class Load:
    """Load a model, unless it is there already. Value: its `Facts`."""

    model: str
    loader: Callable[[], LanguageModel] | Callable[[LanguageModel], Head]
    """Must pickle for worker processes."""
    beside: str = ""
    """Of a drafting head: the loaded target it belongs to, which its loader is given."""


@dataclass(frozen=True)
class Connect:
    """Map the slabs of all drafting workers."""

    slabs: tuple[tuple[str, str, tuple[int, int]], ...]
    """Name, path and shape of each."""


@dataclass(frozen=True)
class Join:
    """Share the attention layers of fuzzy forwards with the other workers of a group."""

    group: str
    path: str
    """Of the file they exchange their outputs through."""
    rank: int
    """Which of them this worker is; 0 leads."""
    ways: int
    """How many they are."""


@dataclass(frozen=True)
class Begin:
    """Start a run: empty KV slots, these sampling parameters."""

    sampling: Sampling
    slots: int
    """Sequences decoded at once."""
    capacity: int
    """KV rows per slot."""
    vocab_size: int
    """The target's; a drafter never proposes an id beyond it."""
    packing: Packing
    """How forwards of several sequences are packed."""
    run: int = 0
    """Number of the run: what workers of a group exchange is told apart by it."""
    features: tuple[int, ...] = ()
    """Hidden states of the target that are kept for a drafting head, see `Output.hidden`."""


@dataclass(frozen=True)
class Retire:
    """A sequence ended: its KV slot is free."""

    sequence: int


class Stage(NamedTuple):
    """Which part of a model that is split by its layers does a forward."""

    number: int
    """From 0."""
    total: int
    """Stages there are."""
    states: bytes = b""
    """What the stage before hands on (`engine.model.stage`)."""

    def of(self, model: str) -> str:
        """Return what its worker calls its part of the model."""
        return f"{model} {self.number + 1}/{self.total}"


@dataclass(frozen=True)
class Prefill:
    """Cache the rows of prefixes, without their last tokens; no logits. Value: None, or the states that a stage hands on."""

    model: str
    prefixes: tuple[Prefix, ...]
    stage: Stage | None = None


@dataclass(frozen=True)
class Propose:
    """Draft n tokens after each prefix, one forward for each position. Value: a tuple of `Grown` per prefix."""

    model: str
    prefixes: tuple[Prefix, ...]
    counts: tuple[int, ...]
    """How many for each prefix."""
    sampled: bool
    rows: tuple[tuple[int, ...], ...]
    """Slab rows to write q to, per prefix; none for greedy drafts."""
    stop_below: float = 0.0
    """A draft ends after a token whose own probability is less."""


@dataclass(frozen=True)
class Export:
    """Copy cached KV rows of a prefix, from `start` on, all but its last token's. Value: their keys and values, as bytes.

    The model must be at rest: the device may go on with another one.
    """

    model: str
    prefixes: tuple[Prefix]
    start: int


@dataclass(frozen=True)
class Import:
    """Take over the KV rows that another copy of the model exported, behind the `start` ones that are here."""

    model: str
    prefixes: tuple[Prefix]
    start: int
    data: bytes


@dataclass(frozen=True)
class Grow:
    """Draft a tree after each prefix. Value: a tuple of `Grown` per prefix, level by level."""

    model: str
    prefixes: tuple[Prefix, ...]
    shape: TreeShape
    levels: tuple[int, ...]
    """Levels at most for each prefix: those of the shape, or fewer at the end of the output."""
    sampled: bool
    rows: tuple[tuple[int, ...], ...]
    """Slab rows to write q to, per prefix: one for each node with children at most; empty for greedy drafts."""
    fuzzy: int = 1
    """Layer-parallel size: so many attention layers read one hidden state (EasySpec); 1 is the ordinary forward."""
    calibrate: bool = True
    """Whether the first forward is exact, and fuzzy rows never count as cached."""
    group: str = ""
    """The group of workers that share the layers; empty for one that works alone."""


@dataclass(frozen=True)
class Score:
    """One forward over the drafts. The logits stay on the worker under `scores`, or are judged at once and forgotten.

    Value: None, or a `Judgement` for each judge, or the states that a stage hands on.
    """

    model: str
    prefixes: tuple[Prefix, ...]
    drafts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Ids and parents of each draft; parents are indices into it, -1 for the prefix's last token."""
    scores: int
    judges: tuple[Judge, ...] = ()
    """Judge at once, one for each prefix: one round trip less."""
    best: bool = False
    """Whether the judgements hold the most probable token after every row, those that nobody judges included."""
    greedy: bool = False
    """Judge at temperature 0, whatever the run's: the model drafts by decoding alone, and may know more tokens."""
    stage: Stage | None = None


@dataclass(frozen=True)
class Judge:
    """Apply the acceptance rules to kept scores. Value: a `Judgement`."""

    scores: int
    draft: Draft
    bonus: bool
    skip: int
    typical: Typical | None = None
    """Judge by typical acceptance, which is lossy."""


@dataclass(frozen=True)
class Drop:
    """Forget scores nobody refers to any more. No reply."""

    scores: int


@dataclass(frozen=True)
class Measure:
    """Time one-row forwards. Value: median seconds."""

    model: str
    context: int
    repeats: int


Job: TypeAlias = (
    Load
    | Connect
    | Join
    | Begin
    | Retire
    | Prefill
    | Propose
    | Export
    | Import
    | Grow
    | Score
    | Judge
    | Drop
    | Measure
)
CONTROL = (Begin, Retire, Judge, Drop, Export)
"""Jobs answered at once, never queued behind another run's, round's or model's forward."""


class Facts(NamedTuple):
    """What a worker tells of a model once it is loaded."""

    vocab_size: int
    context: int
    depth: int = 0
    """Layers; 0 for what has none."""


class Grown(NamedTuple):
    """One node of a drafted tree or chain as the worker reports it."""

    id: int
    parent: int
    """Index of its parent in the tree; -1 is the prefix's last token."""
    level: int
    """Nodes above it."""
    row: int
    """The slab row it was drawn from; -1 when it was not."""
    probability: float
    top: tuple[tuple[int, float], ...]
    forward: int
    """Number of the job's forward that it comes from."""


class Stamp(NamedTuple):
    """When a worker did a piece of work: nanoseconds on its clock."""

    kind: str
    start: int
    end: int
    rows: int
    context: int
    lane: int = 0
    """Which of the worker's devices did it."""
    cells: int = 0
    """Query-key cells its attention computed, in one layer and one head."""
    batch: int = 1
    """Sequences its rows belong to."""
    work: Work | None = None
    """What a drafting head's forward computes."""
    parts: tuple[PartTime, ...] = ()
    """Of a fuzzy forward: when which attention layers were computed, and their outputs exchanged."""
    alone: bool = False
    """Whether no other device has a part in it, whatever its lane."""


class Reply(NamedTuple):
    """A job's value and the work it took, one stamp per forward."""

    value: Any
    stamps: tuple[Stamp, ...]
