"""Jobs for a worker and their replies: plain frozen data that crosses threads and processes.

Jobs are idempotent on the prefix: a worker forwards only the rows after the longest prefix it has
cached. The classes have no slots: a frozen class with slots takes several times as long to pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from engine.drafters.tree import TreeShape
from engine.layout import Packing
from engine.model.language import LanguageModel
from engine.types import Draft, Prefix, Sampling, Typical

if TYPE_CHECKING:
    from engine.heads.drafting import Head


@dataclass(frozen=True)
class Load:
    """Load a model that is not loaded yet. Value: its `Facts`."""

    model: str
    loader: Callable[..., LanguageModel] | Callable[[LanguageModel], Head]
    """Must pickle for worker processes."""
    beside: str = ""
    """For a drafting head: the loaded target it belongs to, passed to the loader."""
    group: str = ""
    """For a model split by tensors: the group of its ranks, passed to the loader as `ranks`."""


@dataclass(frozen=True)
class Connect:
    """Map the slabs of all drafting workers."""

    slabs: tuple[tuple[str, str, tuple[int, int]], ...]
    """(name, path, shape) of each."""


@dataclass(frozen=True)
class Join:
    """Share the attention layers of fuzzy forwards with the other workers of a group."""

    group: str
    path: str
    """The shared memory they exchange outputs through."""
    rank: int
    """This worker's number in the group; 0 is the leader."""
    ways: int
    """Workers of the group."""


@dataclass(frozen=True)
class Link:
    """Form a process group with the other ranks of a model that is split by tensors."""

    group: str
    path: str
    """The shared memory through which the ranks find each other."""
    rank: int
    """This worker's number in the group; 0 is the leader."""
    ways: int
    """Workers of the group."""
    backend: str
    """`gloo` or `nccl`."""


@dataclass(frozen=True)
class Begin:
    """Start a run: empty KV slots, these sampling parameters."""

    sampling: Sampling
    slots: int
    """Sequences decoded at once."""
    capacity: int
    """KV rows per slot."""
    vocab_size: int
    """The target's; a drafter proposes no id beyond it."""
    packing: Packing
    """How forwards of several sequences are packed."""
    run: int = 0
    """The run's number: it separates the exchanges of a group in one run from those in another."""
    features: tuple[int, ...] = ()
    """The target's hidden states to keep for a drafting head, see `Output.hidden`."""


@dataclass(frozen=True)
class Room:
    """Ask for the memory of KV caches; nothing changes. Value: a `Taken`."""

    begin: Begin
    """The run that is to begin."""
    models: tuple[str, ...]
    """Names of the models, and heads, that it uses on this worker."""


@dataclass(frozen=True)
class Retire:
    """Free the KV slot of a sequence that ended."""

    sequence: int


class Stage(NamedTuple):
    """One stage of a model whose layers are split over workers."""

    number: int
    """From 0."""
    total: int
    """The number of stages."""
    states: bytes = b""
    """Hidden states from the previous stage (`engine.model.stage`)."""

    def of(self, model: str) -> str:
        """Return the worker's name for its stage of the model."""
        return f"{model} {self.number + 1}/{self.total}"


PREFILL_ROWS = 1024
"""Most new rows of a sequence in one forward of a prefill: its layers then take short times."""


@dataclass(frozen=True)
class Prefill:
    """Cache the rows of prefixes without their last tokens; no logits.

    Value: None, or a stage's hidden states.
    """

    model: str
    prefixes: tuple[Prefix, ...]
    stage: Stage | None = None


@dataclass(frozen=True)
class Propose:
    """Draft a chain after each prefix, one forward per position.

    Value: a tuple of `Grown` per prefix.
    """

    model: str
    prefixes: tuple[Prefix, ...]
    counts: tuple[int, ...]
    """Tokens to draft after each prefix."""
    sampled: bool
    rows: tuple[tuple[int, ...], ...]
    """Slab rows to write q to, per prefix; none for greedy drafts."""
    stop_below: float = 0.0
    """A draft ends after a token whose probability is lower."""


@dataclass(frozen=True)
class Export:
    """Copy the cached KV rows of a prefix from `start` on, without its last token's. Value: bytes.

    The model must have no forward running; the device may run another model.
    """

    model: str
    prefixes: tuple[Prefix]
    start: int


@dataclass(frozen=True)
class Import:
    """Add KV rows that another copy of the model exported, after the first `start` cached rows."""

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
    """Most levels after each prefix: the shape's, or fewer near the end of the output."""
    sampled: bool
    rows: tuple[tuple[int, ...], ...]
    """Slab rows for q per prefix, at most one per node with children; empty for greedy drafts."""
    fuzzy: int = 1
    """Attention layers that read one hidden state (EasySpec); 1 is the ordinary forward."""
    calibrate: bool = True
    """Whether the first forward is exact and fuzzy rows never count as cached."""
    group: str = ""
    """The group of workers that share the layers; empty for a single worker."""
    unread: int = 0
    """Last tokens of each prefix that a drafting head does not read; masks are in their places."""


class Chunk(NamedTuple):
    """A part of a prompt that joins: the rows from `start` to the prefix's end."""

    prefix: Prefix
    start: int
    """Rows cached before."""


@dataclass(frozen=True)
class Score:
    """One forward over the drafts.

    Its logits are kept, those of prefix i under `scores` + i, or judged at once and dropped. Value:
    None, a `Judgement` per judge, or a stage's hidden states.
    """

    model: str
    prefixes: tuple[Prefix, ...]
    drafts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Ids and parents of each draft; parents are indices, -1 for the prefix's last token."""
    scores: int
    judges: tuple[Judge, ...] = ()
    """Judge at once, one per prefix: this saves a round trip."""
    best: bool = False
    """Whether judgements include the most probable token after every row, judged or not."""
    greedy: bool = False
    """Judge at temperature 0 and within the target's vocabulary: a drafter decodes greedily."""
    stage: Stage | None = None
    chunks: tuple[Chunk, ...] = ()
    """Parts of prompts in the same forward (chunked prefill). Where a part ends its prompt, this is
    one of the prefixes too, with an empty draft."""


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
class JudgeAll:
    """Apply the acceptance rules to kept scores of several sequences, and drop these scores.

    Value: a `Judgement` for each.
    """

    judges: tuple[Judge, ...]


@dataclass(frozen=True)
class Drop:
    """Drop scores that are no longer needed. No reply."""

    scores: int


@dataclass(frozen=True)
class Measure:
    """Time forwards of several numbers of rows in turn.

    Value: the median seconds of each number; a number that was not measured in time is left out.
    """

    model: str
    context: int
    repeats: int
    rows: tuple[int, ...] = (1,)
    """The numbers, in the order in which they are measured."""
    seconds: float = inf
    """Time after which no forward starts; the first one always does."""
    stage: Stage | None = None
    """The stage of a split model to time; it reads hidden states of zeros."""


Job: TypeAlias = (
    Load
    | Connect
    | Join
    | Link
    | Begin
    | Room
    | Retire
    | Prefill
    | Propose
    | Export
    | Import
    | Grow
    | Score
    | Judge
    | JudgeAll
    | Drop
    | Measure
)
Preparation: TypeAlias = Load | Connect | Join | Link | Room
"""Jobs between runs."""
CONTROL = (Begin, Retire, Judge, Drop, Export)
"""Jobs answered at once; they never wait behind a forward."""
