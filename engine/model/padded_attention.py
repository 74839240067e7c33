"""Attention of several slots in one call, after padding has given them equal lengths.

The vanilla method of EMS-SD pads for this (section 3.1): one batched call per layer, not one per
slot.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from engine.model.attention import SlotAttention, attend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from engine.model.cache import Buffers, Cache


class PaddedAttention:
    """Attention of S neighbouring slots with R new rows each and N rows read each, in one forward.

    Args:
        cache: The cache; the rows are appended, their keys and values not yet written.
        buffers: Buffers of the forward.
        parts: The attention of each slot; all of them causal.
        first: Index of the first slot's first row in the packed batch.
    """

    def __init__(self, cache: Cache, buffers: Buffers, parts: Sequence[SlotAttention], first: int) -> None:
        shape, device = cache.shape, cache.tensor.device
        starts = [part.start for part in parts]
        self._same_starts = len(set(starts)) == 1
        """Whether one mask serves all slots."""
        slots, rows = len(parts), parts[0].count
        self._shape = (slots, rows, shape.heads, shape.head_dim)
        self._rows_read = parts[0].rows_read
        self._grouped, self._cap = shape.heads != shape.kv_heads, shape.attention_cap
        kv = cache.tensor.narrow(1, parts[0].slot, slots)
        self._kv = kv.unbind(0)
        keys, values = kv.narrow(3, 0, self._rows_read).chunk(2, 2)
        self._keys, self._values = keys.unbind(0), values.unbind(0)
        offsets = torch.arange(rows, device=device)
        self._indices = (torch.tensor(starts, device=device)[:, None] + offsets).flatten()
        self._slots = torch.arange(slots, device=device).repeat_interleave(rows)
        self._buffered_kv = buffers.kv.narrow(1, first, slots * rows).transpose(0, 1)
        self._queries = buffers.queries.narrow(0, first, slots * rows).view(self._shape).transpose(1, 2)
        self._attended = buffers.attended.narrow(0, first, slots * rows).view(self._shape)
        self._masks: dict[int | None, Tensor] = {}

    def run(self, layer: int, window: int | None) -> None:
        self._kv[layer][self._slots, :, self._indices] = self._buffered_kv
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        attended = attend(
            self._queries,
            self._keys[layer],
            self._values[layer],
            self._masks[window],
            self._cap,
            grouped=self._grouped,
        )
        self._attended.copy_(attended.transpose(1, 2))

    def cells(self, window: int | None) -> int:  # noqa: ARG002 - all keys are read, whatever the window
        return len(self._indices) * self._rows_read

    def _mask(self, window: int | None) -> Tensor:
        """Return 0 for visible rows and minus infinity for others, (S or 1, 1, R, N)."""
        keys = torch.arange(self._rows_read, device=self._indices.device)
        rows = self._indices.view(self._shape[0], 1, self._shape[1], 1)
        distances = (rows[:1] if self._same_starts else rows) - keys
        hidden = distances < 0
        if window is not None:
            hidden |= distances >= window
        return self._queries.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def attention_parts(
    cache: Cache, buffers: Buffers, segments: Sequence[tuple[int, int, int]]
) -> Iterator[SlotAttention | PaddedAttention]:
    """Yield the attention of a forward's slots; neighbouring slots of equal lengths share a part.

    Args:
        cache: The cache; the rows are appended.
        buffers: Buffers of the forward.
        segments: (slot, first, end) of each slot's rows, as `Rows.segments` returns them.
    """
    parts = [SlotAttention(cache, buffers, slot, first, end - first) for slot, first, end in segments]
    cuts = {0, *(i for i, (a, b) in enumerate(pairwise(parts), 1) if not _can_join(a, b)), len(parts)}
    for low, high in pairwise(sorted(cuts)):
        if high - low == 1:
            yield parts[low]
        else:
            yield PaddedAttention(cache, buffers, parts[low:high], segments[low][1])


def _can_join(one: SlotAttention, other: SlotAttention) -> bool:
    neighbours = one.slot + 1 == other.slot
    equal = (one.count, one.rows_read) == (other.count, other.rows_read)
    return neighbours and equal and one.causal and other.causal
