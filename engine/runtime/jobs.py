"""What a run asks of a worker, and what comes back. Plain frozen data: it crosses threads and processes.

Jobs are idempotent on the prefix: a worker forwards only what comes after the longest prefix it already caches.
They have no slots: a frozen class with slots takes several times as long to pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from engine.types import Draft, Prefix, Sampling


@dataclass(frozen=True)
class Begin:
    """Start a run: empty KV slots, these sampling parameters."""

    sampling: Sampling
    sequences: int
    capacity: int
    """KV rows per slot."""
    vocab_size: int
    """The target's; a drafter never proposes an id beyond it."""


@dataclass(frozen=True)
class Prefill:
    """Cache the rows of a prefix, without its last token; no logits."""

    model: str
    prefix: Prefix


@dataclass(frozen=True)
class Propose:
    """Draft n tokens after the prefix, one forward each. Value: tuple of `Proposed`."""

    model: str
    prefix: Prefix
    n: int
    sampled: bool
    rows: tuple[int, ...]
    """Slab rows to write q to; empty for greedy drafts."""


@dataclass(frozen=True)
class Score:
    """One forward over the draft. The logits stay on the worker under `scores`, or are judged at once and forgotten.

    Value: None, or the Verdict, without its draft.
    """

    model: str
    prefix: Prefix
    ids: tuple[int, ...]
    parents: tuple[int, ...]
    """Of each draft token, as indices into the draft; -1 for the prefix's last token."""
    scores: int
    judge: Judge | None = None
    """Judge at once: one round trip less."""


@dataclass(frozen=True)
class Judge:
    """Apply the acceptance rules to kept scores. Value: a Verdict, without its draft."""

    scores: int
    draft: Draft
    bonus: bool
    skip: int


@dataclass(frozen=True)
class Tokens:
    """The target's own draw at rows of kept scores (for pools). Value: tuple of ids."""

    scores: int
    rows: tuple[int, ...]


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


Job: TypeAlias = Begin | Prefill | Propose | Score | Judge | Tokens | Drop | Measure
CONTROL = (Begin, Judge, Tokens, Drop)
"""Jobs answered at once, never queued behind a forward."""


class Proposed(NamedTuple):
    """One drafted token as the worker reports it."""

    id: int
    probability: float
    top: tuple[tuple[int, float], ...]


class Stamp(NamedTuple):
    """When a worker did a piece of work: nanoseconds on its clock."""

    kind: str
    start: int
    end: int
    rows: int
    context: int


class Reply(NamedTuple):
    """A job's value and the work it took, one stamp per forward."""

    value: Any
    stamps: tuple[Stamp, ...]
