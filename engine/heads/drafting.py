"""The interface between a drafting head and its worker, which runs the head's forwards.

D is the target's width, V its vocabulary, N the number of tokens that a head drafts: V, or fewer
(`specscope.engine.heads.modules`). The target's forwards leave its hidden states beside the KV
cache, so drafting costs no forward of the target. Before the target has forwarded a token, a head
drafts
nothing: after a prompt of one token the first draft is empty.

A head drafts for several sequences at once: each of its forwards has the rows of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from specscope.engine.heads.work import Work
from specscope.engine.model.decoder import Decoder
from specscope.engine.model.weights import identity
from specscope.engine.types import Prefix, Tree


class Columns:
    """The tokens of the columns of a drafter's logits.

    A level's nodes are chosen among the columns, without a softmax and a top-k over all tokens.
    `tokens` is (N,) int64, rising, or None if column i is token i.
    """

    def __init__(self, tokens: Tensor | None = None) -> None:
        self.tokens = tokens
        self._ids = None if tokens is None else tokens.tolist()

    def token(self, column: int) -> int:
        return column if self._ids is None else self._ids[column]

    def spread(self, q: Tensor, vocab_size: int) -> Tensor:
        if self.tokens is None:
            return q
        return q.new_zeros(vocab_size).index_copy_(0, self.tokens.to(q.device), q)


class HeadLayer(NamedTuple):
    """The decoder layer of a head that has one."""

    decoder: Decoder
    exact: Work
    """A forward of rows that read the target's states."""
    guessed: Work
    """A forward of rows that read states which the head predicted."""
    fuse: Callable[[Tensor], Tensor] = identity
    """Maps the target's k states, (T, k D), to the vectors that the layer's rows read, (T, D)."""


class DraftedNode(Protocol):
    """A node of the drafted tree."""

    @property
    def id(self) -> int: ...

    @property
    def parent(self) -> int:
        """Index of its parent in the tree; -1 is the prefix's last token."""
        ...


class Growing(Protocol):
    """A tree that is being drafted after a prefix."""

    @property
    def prefix(self) -> Prefix: ...

    @property
    def levels(self) -> int: ...

    @property
    def depth(self) -> int: ...

    @property
    def nodes(self) -> Sequence[DraftedNode]: ...

    @property
    def frontier(self) -> Sequence[int]:
        """The R nodes of the last level that get children; -1 is the prefix's last token."""
        ...

    def level(self) -> Tree:
        """Return the frontier as rows of the next forward, (tokens, parents' rows in the tree)."""
        ...


LevelLogits = Callable[[Sequence[Growing]], Sequence[Tensor]]
"""Maps trees of equal depth to the logits of their next level: for each (R, N), or (1, N) if one
row holds for its whole frontier. Called level by level."""


class HeadForwards(Protocol):
    """One head's forwards after several prefixes, on a worker (`engine.worker.head_forwards`)."""

    @property
    def masked_tail(self) -> int:
        """Known tokens after what the head reads of each prefix; a mask is in each one's place."""
        ...

    def target_states(self, trees: Sequence[Growing]) -> Tensor:
        """Return the target's final state of the last token but one of B prefixes, (B, D)."""
        ...

    def timed(self, trees: Sequence[Growing], rows: int, work: Work, compute: Callable[[], Tensor]) -> Tensor:
        """Return `compute()`; record its time as a forward of `rows` rows for these trees."""
        ...

    def exact(self, trees: Sequence[Growing], masks: Sequence[int]) -> Sequence[Tensor]:
        """Forward the prefixes' uncached rows, with the target's states, then mask tokens.

        Returns for each prefix the logits of its last token and its `masks`, (1 + masks, N).
        """
        ...

    def block(self, trees: Sequence[Growing], mask: int) -> Sequence[Tensor]:
        """Forward the prefixes' uncached states, then blocks: the last token, and masks.

        `mask` is the id of the masks, one for each level. Returns their logits for each prefix,
        (levels, N).
        """
        ...

    def deepen(self, trees: Sequence[Growing]) -> Sequence[Tensor]:
        """Forward the frontiers in one forward; each row reads its parent's predicted state.

        If each place has its own layer, whole chains are forwarded in the next one, whose rows read
        the states of the layer before. Returns the logits after each frontier, (R, N).
        """
        ...


class AllLevels(NamedTuple):
    """All levels of a head without a layer, from one state of the target."""

    logits: Callable[[Tensor, int], Tensor]
    """Maps B states, (B, D), to the logits of the first levels, (B, levels, N)."""
    work: Callable[[int], Work]
    """Of so many levels for one sequence."""


class ByPath(NamedTuple):
    """A level of a head without a layer, from one state of the target and the tokens after it."""

    logits: Callable[[Tensor, Tensor], Tensor]
    """Maps R states, (R, D), and paths of token ids from the last known one on, (R, i + 1), to the
    logits of level i + 1, (R, N)."""
    work: Callable[[int], Work]
    """Of level i, from 0."""


@dataclass(frozen=True, slots=True)
class Head:
    """A loaded head, beside its target."""

    columns: Columns
    draft: Callable[[HeadForwards], LevelLogits]
    """Returns the function that computes the logits of a draft, level by level."""
    layer: HeadLayer | None = None
    keeps: tuple[int, ...] = ()
    """Hidden states of its layer that are kept, because the next level reads them."""
    from_state: AllLevels | ByPath | None = None
    """What a head without a layer computes."""
    further: tuple[Head, ...] = ()
    """Of a head with a layer for each place of a draft: those of the second place on."""

    def named(self, name: str) -> dict[str, Head]:
        """Return this head and the further ones by the names of their models."""
        return {part_name(name, place): head for place, head in enumerate((self, *self.further))}


def part_name(name: str, place: int) -> str:
    """Return the name of the model that drafts a place, from 0, if each place has its own layer."""
    return f"{name}.{place}" if place else name
