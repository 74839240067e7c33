"""The nouns of the engine: sampling parameters, prefixes, drafts and verdicts.

Notation, everywhere in SpecScope: p is the target's distribution, q the drafter's, x the prefix
(all tokens so far), gamma the draft length, n the number of accepted draft tokens, V the
vocabulary size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from specscope.engine.bounds import check_stops
from specscope.engine.errors import UsageError, named_fields, shown
from specscope.engine.schema import bounds, number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import numpy as np

Rule = Literal["", "ratio", "match", "target", "typical"]
"""What decided a token: rule 1 `ratio` (the draft was sampled), rule 2 `match` (the draft is a
function of the prefix), `target` (no draft), or the lossy `typical`; see `engine/sampling/`. Empty
if a recorded program does not say it, or decided nothing."""

Outcome = Literal["accepted", "rejected", "discarded"]
Origin = Literal["accepted", "corrected", "bonus", "plain"]


def check_range(
    name: str, value: float, low: float, high: float | None = None, *, exclusive: bool = False, zero: str = ""
) -> None:
    """Raise UsageError unless low <= value <= high; `exclusive` excludes low.

    `zero` is what 0 means; without it 0 has no meaning of its own.
    """
    if not isinstance(value, Real):
        raise UsageError(f"{name} is {shown(value)}; it must be a number", name)
    if zero and value == 0:
        return
    too_low = value <= low if exclusive else value < low
    if value != value or too_low or (high is not None and value > high):
        allowed = bounds(low, high, "more than" if exclusive else "at least")
        special = f", or 0 ({zero})" if zero else ""
        raise UsageError(f"{name} is {number(value)}; it must be {allowed}{special}", name)


def whole(name: str, value: Any, low: float, high: float | None = None) -> int:
    """Return a whole number as an int; UsageError unless it is one, and low <= value <= high."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{name} is {shown(value)}; it must be a whole number")
    check_range(name, int(value), low, high)
    return int(value)


def check_choice(what: str, value: object, known: Collection[str], setting: str = "") -> None:
    """Raise UsageError unless a value is one of those known; the message begins with `what`."""
    if value not in known:
        raise UsageError(f"{what}; choose one of {', '.join(known)}", setting)


def check_text(name: str, text: str) -> None:
    """Raise UsageError unless a text is valid Unicode without NUL, the sign of a binary file."""
    if bad := re.search("[\0\ud800-\udfff]", text):
        why = "is not text" if bad[0] == "\0" else "is not valid Unicode"
        raise UsageError(f"character {bad.start()} of {name}, {bad[0]!r}, {why}; remove it")


MOST_DRAFTERS = 8
"""The largest number of drafters that race in one run."""


def drafter_key(number: int) -> str:
    """Return a drafter's name on its worker: `drafter` for number 0, then `drafter-2`, ..."""
    return f"drafter-{number + 1}" if number else "drafter"


@named_fields
@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn from logits; p and q get the same logits processors."""

    temperature: float = 0.0
    """Logits are divided by it; 0 is argmax. 0 to 10."""

    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""

    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; more than 0, at most 1."""

    seed: int = 0
    """Every random draw of a run is a function of this seed; 0 or more."""

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, 10)
        whole("top_k", self.top_k, 0, 2**31 - 1)
        check_range("top_p", self.top_p, 0, 1, exclusive=True)
        whole("seed", self.seed, 0, 2**63 - 1)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@named_fields
@dataclass(frozen=True, slots=True)
class Limits:
    """When a sequence ends."""

    max_new_tokens: int = 128
    """Tokens to generate at most; at least 1."""

    stop: tuple[str, ...] = ()
    """Strings that end the text; they are cut off."""

    eos: tuple[int, ...] = ()
    """Token ids that end the text; the id itself is kept in token_ids, not in the text."""

    def __post_init__(self) -> None:
        whole("max_new_tokens", self.max_new_tokens, 1)
        if isinstance(self.stop, str):  # one text, and not one for each of its characters
            object.__setattr__(self, "stop", (self.stop,))
        for name, kind, what in (("stop", str, "texts"), ("eos", Integral, "token ids")):
            value: Any = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(isinstance(one, kind) for one in value):
                raise UsageError(f"{name} is {shown(value)}; it must be a list of {what}")
        check_stops(self.stop)
        for i, text in enumerate(self.stop):
            if not text:
                raise UsageError(
                    f"stop text {i + 1} of {len(self.stop)} is empty; leave it out, or give a character"
                )
            check_text("a stop text", text)


class Typical(NamedTuple):
    """Typical acceptance, a LOSSY rule (Medusa, section 2.3.1).

    A drafted x is accepted if p(x) > min(epsilon, delta exp(-H(p))), H the entropy in nats.
    """

    epsilon: float
    delta: float


class Damping(NamedTuple):
    """Saguaro sampling (SSD): a drafter that seldom draws its most probable tokens."""

    factor: float
    """By which the probability of these tokens is multiplied, before all are normalised."""
    tokens: int
    """The number of the most probable tokens, at least 1."""


class RowRef(NamedTuple):
    """One row of q, (V,) float32, in a worker's q buffer."""

    buffer: str
    """Name of the q buffer; the drafter's worker has the same name."""
    row: int


@dataclass(frozen=True)
class DraftToken:
    """One drafted token."""

    id: int
    parent: int = -1
    """Index of the token before it in the draft; -1 is the prefix's last token."""
    q: RowRef | None = None
    """The row it was sampled from; None if the draft is a function of the prefix (rule 2)."""
    probability: float = float("nan")
    """q(token), for the trace: after the logits processors if sampled, else the softmax."""
    top: tuple[tuple[int, float], ...] = ()
    """The drafter's most probable tokens and their probabilities, for the trace."""
    span: int = -1
    number: int = -1
    """Its number in the run; -1 for a token that no model drafted."""


Tree: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids and parents of rows after a prefix; a parent is a row index, or -1 for the last token."""
NO_TREE: Tree = ((), ())
Gram: TypeAlias = tuple[int, ...]
"""Consecutive token ids."""


class CopySource(NamedTuple):
    """The place from which the tokens of a draft were copied."""

    document: int
    """Index of the reference document; -1 is the sequence itself, prompt and output."""
    start: int
    """Index of the first copied token in it."""
    match: int
    """The number of tokens right before `start` that equal the last ones of the prefix."""


@dataclass(frozen=True)
class Draft:
    """Drafted tokens after a prefix: a chain, or a tree given by the tokens' parents."""

    tokens: tuple[DraftToken, ...] = ()
    lease: tuple[object, ...] = field(default=(), repr=False, compare=False)
    """Keeps the q rows alive."""
    source: CopySource | None = None
    """The place the tokens were copied from, if they were. Parts and sums of a draft have none."""
    grams: tuple[Gram, ...] = ()
    """The n-grams of a pool that it tries, each with its first token, which is part of the text.

    Parts and sums of a draft have none."""
    rows: tuple[Callable[[int, int], Any], ...] = field(default=(), compare=False)
    """Each makes a row of the trace about it, of the step and the sequence that judge it.

    Parts and sums of a draft have none."""

    @classmethod
    def empty(cls) -> Draft:
        return cls()

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(t.id for t in self.tokens)

    @property
    def parents(self) -> tuple[int, ...]:
        """Parents, as indices into the draft; -1 for the prefix's last token."""
        return tuple(t.parent for t in self.tokens)

    @property
    def depth(self) -> int:
        """The number of tokens of its longest path."""
        return max(levels_of(t.parent for t in self.tokens), default=-1) + 1

    def __len__(self) -> int:
        return len(self.tokens)

    def __bool__(self) -> bool:
        return bool(self.tokens)

    def __getitem__(self, part: slice) -> Draft:
        return Draft(_chained(self.tokens[part]), self.lease)

    def __add__(self, other: Draft) -> Draft:
        """Return two chains as one."""
        return Draft(_chained(self.tokens + other.tokens), self.lease + other.lease)


def levels_of(parents: Iterable[int]) -> list[int]:
    """Return the level of each token of a draft, from 0; its parent is -1 or an earlier token."""
    levels = list[int]()
    for parent in parents:
        levels.append(0 if parent < 0 else levels[parent] + 1)
    return levels


def _chained(tokens: tuple[DraftToken, ...]) -> tuple[DraftToken, ...]:
    return tuple(t if t.parent == i - 1 else replace(t, parent=i - 1) for i, t in enumerate(tokens))


@dataclass(frozen=True)
class Prefix:
    """All tokens of one sequence so far: prompt, committed tokens and, after `+`, drafted ones."""

    sequence: int
    """Number of the sequence in the run; its KV slot and its draws depend on it."""
    tokens: np.ndarray
    """Token ids, (L,) int64."""

    def __len__(self) -> int:
        return len(self.tokens)

    def __add__(self, more: Draft | Iterable[int]) -> Prefix:
        """Return the prefix followed by a chain."""
        ids = more.ids if isinstance(more, Draft) else tuple(more)
        if not ids:
            return self
        import numpy as np  # recorded programs may have none

        return Prefix(self.sequence, np.concatenate([self.tokens, np.asarray(ids, dtype=np.int64)]))


class PoolUpdate(NamedTuple):
    """The n-grams that a pool learnt since its last update, and the window that feeds it."""

    model: str
    """The model of the window: `target` or `drafter`."""
    window: tuple[Gram, ...]
    """The levels of the last forward, and the model's tokens after the last level; may be empty."""
    gained: tuple[Gram, ...]
    """The n-grams added or met again, in order."""
    size: int


class Judged(NamedTuple):
    """One decision of an acceptance rule, about a drafted token or the target's own token."""

    node: int
    """Index in the judged draft; -1 for the target's own token."""
    parent: int
    """Index of its parent node; -1 is the prefix's last token."""
    position: int
    """Position in the sequence (0 is the prompt's first token)."""
    token: int
    p: float
    """p(token): after the logits processors; at temperature 0 the plain softmax."""
    q: float
    """q(token), processed like p; nan for the target's own token."""
    u: float
    """The uniform draw the rule used; nan where it used none, as at temperature 0."""
    rule: Rule
    outcome: Outcome | Origin
    top_p: tuple[tuple[int, float], ...] = ()
    """The target's most probable tokens at this position, with their probability."""


@dataclass(frozen=True)
class Judgement:
    """The decisions about one draft, as the target's worker returns them."""

    accepted: tuple[int, ...]
    """Ids of the accepted tokens, in order."""
    own: int | None
    """The target's own token after them; None when `bonus` was off."""
    origin: Origin | None
    """corrected, bonus or plain: why the target drew `own`."""
    judged: tuple[Judged, ...]
    """Every decision, in the order taken; nodes that no decision reached are last."""
    nodes: tuple[int, ...]
    """Draft indices of the accepted tokens."""
    best: tuple[int, ...] = ()
    """On request: the most probable token after the prefix, each drafted token, each window row."""

    @property
    def emitted(self) -> tuple[int, ...]:
        return self.accepted if self.own is None else (*self.accepted, self.own)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The origin of each of these."""
        accepted: tuple[Origin, ...] = ("accepted",) * len(self.accepted)
        return accepted if self.origin is None else (*accepted, self.origin)


@dataclass(frozen=True, kw_only=True)
class Verdict(Judgement):
    """A judgement with the draft it is about, as methods and the trace use it."""

    sequence: int
    draft: Draft
    mode: str = "verify"
    """plain, verify, pre-verify or post-verify: see `specscope.engine.run.scores.mode_of`."""
    span: int = -1

    @property
    def all_accepted(self) -> bool:
        return len(self.accepted) == len(self.draft)
