"""Jobs for a worker and their replies: plain frozen data that crosses threads and processes.

Jobs are idempotent on the prefix: a worker forwards only the rows after the longest prefix it has
cached. The classes have no slots: a frozen class with slots takes several times as long to pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from specscope.engine.drafting.tree import TreeShape
from specscope.engine.layout import Packing
from specscope.engine.model.fuzzy import PartTime
from specscope.engine.model.language import LanguageModel
from specscope.engine.types import Damping, Draft, Judgement, Prefix, Sampling, Typical

if TYPE_CHECKING:
    from specscope.engine.heads.drafting import Head
    from specscope.engine.heads.work import Work


@dataclass(frozen=True)
class LoadModel:
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
    """Map the q buffers of all drafting workers."""

    q_buffers: tuple[tuple[str, str, tuple[int, int]], ...]


@dataclass(frozen=True)
class Join:
    """Share the attention layers of fuzzy forwards with the other workers of a group."""

    group: str
    path: str
    rank: int
    ways: int


@dataclass(frozen=True)
class Link:
    """Form a process group with the other ranks of a model that is split by tensors."""

    group: str
    path: str
    rank: int
    ways: int
    backend: str


@dataclass(frozen=True)
class Begin:
    """Start a run: empty KV slots, these sampling parameters."""

    sampling: Sampling
    slots: int
    capacity: int
    vocab_size: int
    """The target's; a drafter proposes no id beyond it."""
    packing: Packing
    run: int = 0
    """The run's number: it separates the exchanges of a group in one run from those in another."""
    features: tuple[int, ...] = ()
    """The target's hidden states to keep for a drafting head, see `Output.hidden`."""


@dataclass(frozen=True)
class AskCaches:
    """Ask for the memory of KV caches; nothing changes. Value: a `CacheMemory`."""

    begin: Begin
    models: tuple[str, ...]


@dataclass(frozen=True)
class Retire:
    """Free the KV slot of a sequence that ended."""

    sequence: int


class Stage(NamedTuple):
    """One stage of a model whose layers are split over workers."""

    number: int
    total: int
    states: bytes = b""
    """Hidden states from the previous stage (`specscope.engine.model.stage`)."""

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
    """Draft a chain or a tree after each prefix. Value: a tuple of `Grown` per prefix, by level."""

    model: str
    prefixes: tuple[Prefix, ...]
    shape: TreeShape
    levels: tuple[int, ...]
    """Most levels after each prefix: the shape's, or fewer near the end of the output."""
    sampled: bool
    rows: tuple[tuple[int, ...], ...]
    """Rows of the q buffer per prefix, at most one per node with children; none without draws."""
    chain: bool = False
    """Whether the drafts are chains, `Wide(1, n)`: then a token not drawn is the logits' argmax."""
    stop_below: float = 0.0
    """No node after one whose probability is lower."""
    fuzzy: int = 1
    """Attention layers that read one hidden state (EasySpec); 1 is the ordinary forward."""
    calibrate: bool = True
    """Whether the first forward is exact and fuzzy rows never count as cached."""
    group: str = ""
    """The group of workers that share the layers; empty for a single worker."""
    masked_tail: int = 0
    """Last tokens of each prefix that a drafting head does not read; masks are in their places."""
    damping: tuple[Damping, ...] = ()
    """Of each level's q; empty for q itself."""
    then: str = ""
    """The model on the same worker that verifies the draft at once, if no host is needed between
    (`specscope.engine.worker.rounds`); empty for none."""
    ahead: bool = False
    """Whether the next round of this kind may then begin at once; an `Abandon` ends it."""


@dataclass(frozen=True)
class Fan:
    """Draft a branch for each likely outcome of a draft's verification. Value: the `Branch`es.

    Outcome (j, t): the first j tokens of the draft, the *trunk*, are accepted, and the target's own
    token is t. A stopped job returns what it has drafted, at least the branches' first tokens.
    """

    model: str
    prefixes: tuple[Prefix]
    trunk: tuple[int, ...]
    forks: tuple[int, ...]
    """For each place, 0 to the trunk's length: the number of tokens t that get a branch."""
    lengths: tuple[int, ...]
    """For each place: most tokens drafted after t; a place with 0 has no branches."""
    sampled: bool
    rows: tuple[tuple[int, ...], ...]
    """Rows of the q buffer for each branch, by place; none without draws."""
    damping: tuple[Damping, ...] = ()
    """Of the q of each token of a branch; empty for q itself."""
    stop_below: float = 0.0
    """No token of a branch after one whose probability is lower; t does not count."""

    @property
    def depth(self) -> int:
        """Tokens of the trunk before the last place with branches."""
        return max(place for place, length in enumerate(self.lengths) if length)


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


class Chunk(NamedTuple):
    """A part of a prompt that joins: the rows from `start` to the prefix's end."""

    prefix: Prefix
    start: int


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
    ahead: bool = False
    """See `Propose.ahead`; for plain decoding."""


@dataclass(frozen=True)
class Abandon:
    """Wait for a round that has begun and is not asked for. Its stamps are those of the reply."""

    model: str
    """The model of the jobs that it would have followed."""


@dataclass(frozen=True)
class Judge:
    """Apply the acceptance rules to kept scores. Value: a `Judgement`."""

    scores: int
    draft: Draft
    bonus: bool
    skip: int
    typical: Typical | None = None


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
    seconds: float = inf
    """Time after which no forward starts; the first one always does."""
    stage: Stage | None = None
    """The stage of a split model to time; it reads hidden states of zeros."""


Job: TypeAlias = (
    LoadModel
    | Connect
    | Join
    | Link
    | Begin
    | AskCaches
    | Retire
    | Prefill
    | Propose
    | Fan
    | Export
    | Import
    | Score
    | Abandon
    | Judge
    | JudgeAll
    | Drop
    | Measure
)
Preparation: TypeAlias = LoadModel | Connect | Join | Link | AskCaches
"""Jobs between runs."""
CONTROL = (Begin, Retire, Judge, Drop, Export)
"""Jobs answered at once; they never wait behind a forward."""


class Facts(NamedTuple):
    """Facts of a loaded model."""

    vocab_size: int
    context: int
    depth: int = 0
    clock_error: int = 0
    """Most nanoseconds by which times of the worker's device are wrong (`engine.model.clock`)."""


class CacheMemory(NamedTuple):
    """Memory of a worker's KV caches, in bytes."""

    held: int
    more: int
    """What a run adds to it; negative if its caches are smaller."""
    row: int
    """Keys, values and kept states of one token, in all models that the run uses."""
    spare: int = 0
    """What torch keeps of a GPU's memory without using it."""
    exact: bool = False
    """Whether a number takes more than two bytes."""
    compiled: tuple[tuple[str, int], ...] = ()
    """Model and number of rows of the static forwards whose layers will be compiled in the run."""


class Grown(NamedTuple):
    """One node of a drafted tree or chain in a worker's reply."""

    id: int
    parent: int
    level: int
    row: int
    """Q buffer row of the q it was drawn from; -1 for none."""
    probability: float
    top: tuple[tuple[int, float], ...]
    forward: int
    """Number of the job's forward that drafted it."""


class Branch(NamedTuple):
    """What a drafter drafted for one outcome of a verification."""

    place: int
    """Tokens of the trunk before it."""
    token: int
    """The target's own token at this place, as guessed."""
    probability: float
    """Its probability: the drafter's plain softmax."""
    chain: tuple[Grown, ...]
    """The tokens drafted after it."""


class Stamp(NamedTuple):
    """Start and end of one piece of work, in nanoseconds of the worker's clock."""

    kind: str
    start: int
    end: int
    rows: int
    context: int
    lane: int = 0
    cells: int = 0
    """Query-key cells of its attention, in one layer and one head."""
    experts: tuple[int, int] | None = None
    """See `Output.experts`."""
    batch: int = 1
    work: Work | None = None
    parts: tuple[PartTime, ...] = ()
    """Of a fuzzy forward: times of its attention layers and exchanges."""
    communicated: int = 0
    """Nanoseconds of its communication with the other ranks of a model split by tensors."""
    alone: bool = False
    """Whether this device alone ran the job, in any lane."""

    def read(self, time_of: Callable[[int], int]) -> Stamp:
        """Return a copy with times in place of marks (`specscope.engine.model.clock`)."""
        parts = tuple(p._replace(start=time_of(p.start), end=time_of(p.end)) for p in self.parts)
        return self._replace(start=time_of(self.start), end=time_of(self.end), parts=parts)


class Verified(NamedTuple):
    """A verification that followed a draft at once."""

    judgement: Judgement
    stamps: tuple[Stamp, ...]
    """Of the verification."""


class Reply(NamedTuple):
    """A job's value, and one stamp per forward."""

    value: Any
    stamps: tuple[Stamp, ...]
    judged: Verified | None = None
    """Of a `Propose` with `then`, where the host could do it."""
    begun: bool = False
    """Whether the next round has begun (`Propose.ahead`)."""
