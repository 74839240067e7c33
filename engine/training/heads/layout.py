"""Packed rows of texts: their tokens, and behind some of them a group's further rows.

Group-wise parallel training (ParallelSpec, section 4.1 and Figure 3): a group is a token and K masks, and all groups of
a text lie in one sequence. Token i comes after token i - 1, mask (i, 1) after token i, mask (i, k) after mask
(i, k - 1). Masks and positions follow from these parents by the function that inference uses (`Slots`), so no group
sees another's masks, and a row's position is the one it has when a draft is made.

The same layout holds the chains that an autoregressive head drafts behind many tokens at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.model.slots import Rows, Slots


class Texts(NamedTuple):
    """Texts end to end, T tokens, and the places where drafts begin."""

    ids: Tensor
    """x, (T,) int64."""
    embedded: Tensor
    """E(x), (T, D)."""
    features: Tensor
    """f: the target's final normed hidden state at each token, (T, D)."""
    starts: np.ndarray
    """Where each text begins, and at last T, (N + 1,) int64."""
    anchors: np.ndarray
    """Tokens behind which a draft begins, (A,) int64, rising; none is the first or the last of its text."""

    def reaching(self, count: int) -> np.ndarray:
        """Return the anchors whose text has at least `count` more tokens."""
        ends = self.starts[np.searchsorted(self.starts, self.anchors, side="right")]
        return self.anchors[self.anchors + count < ends]


class Layout(NamedTuple):
    """R packed rows of one text."""

    tokens: np.ndarray
    """Token each row is or follows, (R,) int64, from 0."""
    numbers: np.ndarray
    """Number of the row in its group, (R,) int64: 0 for the token itself, k for the k-th row behind it."""
    positions: np.ndarray
    """(R,) int64, from 0."""
    seen: np.ndarray
    """Which rows each row attends to, itself included, (R, R) bool."""


class Packed(NamedTuple):
    """The rows of several texts, one text after the other."""

    tokens: Tensor
    """Place of each row's token in `Texts`, (R,) int64."""
    numbers: Tensor
    """As in `Layout`."""
    positions: Tensor
    """As in `Layout`."""
    seen: tuple[Tensor, ...]
    """Of each text."""

    def at(self, number: int) -> Tensor:
        """Return the rows of that number, in order."""
        return torch.nonzero(self.numbers == number)[:, 0]


def lay_out(behind: np.ndarray) -> Layout:
    """Pack a text's tokens, (L,), with `behind[i]` rows behind token i."""
    sizes = behind + 1
    tokens = np.repeat(np.arange(len(behind)), sizes)
    first = np.cumsum(sizes) - sizes
    numbers = np.arange(len(tokens)) - first[tokens]
    before = np.concatenate([[-1], first[:-1]])
    parents = np.where(numbers == 0, before[tokens], np.arange(len(tokens)) - 1)
    slots = Slots(1, len(tokens))
    slots.append(Rows.of(0, np.zeros(len(tokens)), parents))
    return Layout(tokens, numbers, slots.positions[0], slots.ancestor_mask(0, 0))


def pack(texts: Texts, count: int, *, within: bool) -> Packed:
    """Return the rows a layer reads: each text from its second token to its last but one, and groups at the anchors.

    The row of x_j reads f_(j-1), so there is none for x_0, and x_(L-1) has nothing to predict.

    Args:
        texts: The texts.
        count: Rows behind each anchor.
        within: Leave out those that would predict past the end of their text.
    """
    layouts, places = list[Layout](), list[np.ndarray]()
    for start, stop in zip(texts.starts[:-1], texts.starts[1:], strict=True):
        tokens = np.arange(start + 1, stop - 1)
        behind = np.where(np.isin(tokens, texts.anchors), count, 0)
        layout = lay_out(np.minimum(behind, stop - 2 - tokens) if within else behind)
        layouts.append(layout)
        places.append(tokens[layout.tokens])
    device = texts.ids.device
    rows = (places, [part.numbers for part in layouts], [part.positions for part in layouts])
    return Packed(
        *(torch.from_numpy(np.concatenate(column)).to(device) for column in rows),
        seen=tuple(torch.from_numpy(layout.seen).to(device) for layout in layouts),
    )
