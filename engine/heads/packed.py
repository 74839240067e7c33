"""Packed rows of texts: their tokens, and a group of further rows after each anchor.

Group-wise parallel training (ParallelSpec, section 4.1 and Figure 3): a group is a token and K
masks, and all groups of a text are in one sequence. Token i follows token i - 1, mask (i, 1)
follows token i, mask (i, k) follows mask (i, k - 1). Attention masks and positions follow from
these parents by the function that inference uses (`Slots`), so no group sees another's masks, and
rows have the positions of inference.

The same layout holds the chains that an autoregressive head drafts at many anchors at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.model.slots import Rows, Slots


class Texts(NamedTuple):
    """Texts end to end, T tokens, and the tokens after which drafts begin."""

    ids: Tensor
    """x, (T,) int64."""
    embedded: Tensor
    """E(x), (T, D)."""
    features: Tensor
    """f: the target's final normed hidden state at each token, (T, D)."""
    starts: np.ndarray
    """First token of each text, then T, (N + 1,) int64."""
    anchors: np.ndarray
    """Tokens after which a draft begins, (A,) int64, rising; none is the first or the last of its
    text."""
    answers: Tensor | None = None
    """Whether each token belongs to an answer, (T,) bool; losses count no others. None: all do."""

    def anchors_with(self, count: int) -> np.ndarray:
        """Return the anchors whose text has at least `count` more tokens."""
        ends = self.starts[np.searchsorted(self.starts, self.anchors, side="right")]
        return self.anchors[self.anchors + count < ends]

    def anchor_tensor(self, count: int) -> Tensor:
        """Return `anchors_with(count)` on the texts' device."""
        return torch.from_numpy(self.anchors_with(count)).to(self.ids.device)


class PackedText(NamedTuple):
    """R packed rows of one text."""

    tokens: np.ndarray
    """The token that each row is or follows, (R,) int64, from 0."""
    numbers: np.ndarray
    """Number of the row in its group, (R,) int64: 0 for the token, k for the k-th row after it."""
    positions: np.ndarray
    """(R,) int64, from 0."""
    seen: np.ndarray
    """Rows that each row attends to, itself included, (R, R) bool."""


class Packed(NamedTuple):
    """The rows of several texts, one text after the other."""

    tokens: Tensor
    """Index of each row's token in `Texts`, (R,) int64."""
    numbers: Tensor
    """As in `PackedText`."""
    positions: Tensor
    """As in `PackedText`."""
    seen: tuple[Tensor, ...]
    """As in `PackedText`, for each text."""

    def at(self, number: int) -> Tensor:
        """Return the rows of a number, in order."""
        return torch.nonzero(self.numbers == number)[:, 0]


def lay_out(groups: np.ndarray) -> PackedText:
    """Pack a text's tokens, (L,), with `groups[i]` rows after token i."""
    sizes = groups + 1
    tokens = np.repeat(np.arange(len(groups)), sizes)
    first = np.cumsum(sizes) - sizes
    numbers = np.arange(len(tokens)) - first[tokens]
    previous = np.concatenate([[-1], first[:-1]])
    parents = np.where(numbers == 0, previous[tokens], np.arange(len(tokens)) - 1)
    slots = Slots(1, len(tokens))
    slots.append(Rows.of(0, np.zeros(len(tokens)), parents))
    return PackedText(tokens, numbers, slots.positions[0], slots.ancestor_mask(0, 0))


def pack(texts: Texts, count: int, *, within: bool) -> Packed:
    """Return the rows that a layer reads: the tokens of each text without its ends, with groups.

    The row of x_j reads f_(j-1), so x_0 has no row; x_(L-1) has nothing to predict.

    Args:
        texts: The texts.
        count: Rows after each anchor.
        within: Whether rows that would predict past the end of their text are left out.
    """
    layouts, tokens = list[PackedText](), list[np.ndarray]()
    for start, stop in zip(texts.starts[:-1], texts.starts[1:], strict=True):
        inner = np.arange(start + 1, stop - 1)
        groups = np.where(np.isin(inner, texts.anchors), count, 0)
        layout = lay_out(np.minimum(groups, stop - 2 - inner) if within else groups)
        layouts.append(layout)
        tokens.append(inner[layout.tokens])
    device = texts.ids.device
    columns = (tokens, [part.numbers for part in layouts], [part.positions for part in layouts])
    return Packed(
        *(torch.from_numpy(np.concatenate(column)).to(device) for column in columns),
        seen=tuple(torch.from_numpy(layout.seen).to(device) for layout in layouts),
    )
