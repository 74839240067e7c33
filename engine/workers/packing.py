"""Padding of the vanilla method, which gives all sequences of a forward the same lengths.

Source: EMS-SD, section 3.1. PyTorch's attention needs aligned tensors. So the vanilla method pads
the new rows where one sequence has fewer drafted tokens than another, and the KV cache where one
had fewer tokens accepted. Both are real work: padding rows pass every layer, and every row attends
to the padding in its sequence's cache, which a mask hides.

Cache padding is placed after a sequence's own rows, not between them. The number of keys read is
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from engine.model.slots import PAD, Rows
from engine.types import Prefix


def padded(rows: Rows, count: int) -> Rows:
    """Append padding rows to the rows of one slot, at least one row, until there are `count`.

    A padding row has the position of the last row.
    """
    if count == len(rows):
        return rows
    index = np.arange(count)
    last = np.minimum(index, len(rows) - 1)
    flags = np.where(index < len(rows), rows.flags[last], PAD).astype(np.uint8)
    return Rows(rows.tokens[last], rows.slots[last], rows.parents[last], flags)


class Alignment:
    """Padding rows of each sequence's KV cache, so that all sequences end at the same row.

    After every round a sequence is padded by the difference between the most tokens that any
    sequence got and its own. A sequence that joins later is padded in front. Padding that all
    sequences share is left out.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}
        self._padding: dict[int, int] = {}

    def record(self, prefixes: Iterable[Prefix]) -> None:
        """Record the lengths after a round.

        A sequence whose length did not change was inactive or is already recorded.
        """
        lengths = {p.sequence: len(p) for p in prefixes}
        grown = {s: n - self._lengths.get(s, n) for s, n in lengths.items()}
        most = max(grown.values(), default=0)
        for sequence, more in grown.items():
            if more > 0:
                self._padding[sequence] = self._padding.get(sequence, 0) + most - more
        self._lengths |= lengths

    def remove(self, sequence: int) -> None:
        """Forget a sequence."""
        self._lengths.pop(sequence, None)
        self._padding.pop(sequence, None)

    def length(self, cached: Mapping[int, int]) -> int:
        """Return the KV length of all sequences of a forward.

        Args:
            cached: Cached rows of each sequence, without padding.
        """
        return max((rows + self._padding.get(sequence, 0) for sequence, rows in cached.items()), default=0)
