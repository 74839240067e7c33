"""What the vanilla method adds to a forward of several sequences, so that all of them have the same lengths.

Source: EMS-SD, section 3.1. PyTorch's attention wants aligned tensors, so two things are padded: the new rows, where one
sequence has fewer drafts than another, and the KV cache, where one had fewer tokens accepted. Both are real work: padding
rows go through every layer, and every row attends to the padding of its sequence's cache, which a mask hides.

Padding of the cache lies behind a sequence's own rows, not between them: as many keys are read, of the same tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from engine.model.slots import PAD, Rows
from engine.types import Prefix


def padded(rows: Rows, count: int) -> Rows:
    """Return the rows of one slot with as many padding rows behind them as make `count`.

    A padding row hangs where the last row does, so it reaches no further position. There is at least one row.
    """
    if count == len(rows):
        return rows
    index = np.arange(count)
    last = np.minimum(index, len(rows) - 1)
    flags = np.where(index < len(rows), rows.flags[last], PAD).astype(np.uint8)
    return Rows(rows.tokens[last], rows.slots[last], rows.parents[last], flags)


class Alignment:
    """By how many rows each sequence's KV cache is padded, so that all end at the same row.

    After every round a sequence is padded by what it got less than the one that got most. Sequences that come later are
    padded in front; what is padding for everybody takes no place.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}
        self._padding: dict[int, int] = {}

    def follow(self, prefixes: Iterable[Prefix]) -> None:
        """Take the lengths after a round; sequences without a new token were not in it, or it was told before."""
        lengths = {p.sequence: len(p) for p in prefixes}
        grown = {s: n - self._lengths.get(s, n) for s, n in lengths.items()}
        most = max(grown.values(), default=0)
        for sequence, more in grown.items():
            if more > 0:
                self._padding[sequence] = self._padding.get(sequence, 0) + most - more
        self._lengths |= lengths

    def leave(self, sequence: int) -> None:
        """Forget a sequence."""
        self._lengths.pop(sequence, None)
        self._padding.pop(sequence, None)

    def length(self, cached: Mapping[int, int]) -> int:
        """Return the length that all sequences of a forward have.

        Args:
            cached: Rows that each sequence has cached itself.
        """
        return max((rows + self._padding.get(sequence, 0) for sequence, rows in cached.items()), default=0)
