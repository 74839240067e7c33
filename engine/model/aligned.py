"""Attention of several slots at once, where padding has given all of them the same lengths.

This is what the vanilla method of EMS-SD pads for (section 3.1): one batched call per layer instead of one per slot.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.model.attention import Attention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from engine.model.cache import Buffers, Cache


class Aligned:
    """The new rows of neighbouring slots, as many in each, whose cached rows are padded to one length.

    Args:
        cache: Holds the rows already, without their keys and values.
        buffers: Of the forward.
        parts: The attention of each slot alone: one chain, or one with padding rows behind it.
        first: The first of their rows in the batch.
    """

    def __init__(self, cache: Cache, buffers: Buffers, parts: Sequence[Attention], first: int) -> None:
        shape, device = cache.shape, cache.tensor.device
        starts = [part.start for part in parts]
        self._level = len(set(starts)) == 1
        """Whether one mask serves all slots."""
        slots, rows = len(parts), parts[0].count
        self._shape = (slots, rows, shape.heads, shape.head_dim)
        self._reads = parts[0].reads
        self._grouped = shape.heads != shape.kv_heads
        held = cache.tensor.narrow(1, parts[0].slot, slots)
        self._held = held.unbind(0)
        keys, values = held.narrow(3, 0, self._reads).chunk(2, 2)
        self._keys, self._values = keys.unbind(0), values.unbind(0)
        new = torch.arange(rows, device=device)
        self._at = (torch.tensor(starts, device=device)[:, None] + new).flatten()
        self._slots = torch.arange(slots, device=device).repeat_interleave(rows)
        self._new = buffers.kv.narrow(1, first, slots * rows).transpose(0, 1)
        self._queries = buffers.queries.narrow(0, first, slots * rows).view(self._shape).transpose(1, 2)
        self._read = buffers.read.narrow(0, first, slots * rows).view(self._shape)
        self._masks: dict[int | None, Tensor] = {}

    def run(self, layer: int, window: int | None) -> None:
        """Do what `Attention.run` does, for all slots."""
        self._held[layer][self._slots, :, self._at] = self._new
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        read = scaled_dot_product_attention(
            self._queries,
            self._keys[layer],
            self._values[layer],
            self._masks[window],
            scale=1.0,
            enable_gqa=self._grouped,
        )
        self._read.copy_(read.transpose(1, 2))

    def cells(self, window: int | None) -> int:  # noqa: ARG002 - all keys are read, whatever the window
        """Return what `Attention.cells` returns, for all slots."""
        return len(self._at) * self._reads

    def _mask(self, window: int | None) -> Tensor:
        """Return 0 where a row sees another and minus infinity elsewhere: (slots or 1, 1, rows, keys)."""
        keys = torch.arange(self._reads, device=self._at.device)
        rows = self._at.view(self._shape[0], 1, self._shape[1], 1)
        behind = (rows[:1] if self._level else rows) - keys
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        return self._queries.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def attend(
    cache: Cache, buffers: Buffers, segments: Sequence[tuple[int, int, int]]
) -> Iterator[Attention | Aligned]:
    """Return who computes the attention of a forward's segments: neighbours of the same lengths do it together."""
    parts = [Attention(cache, buffers, slot, first, end - first) for slot, first, end in segments]
    cuts = {0, *(i for i, (a, b) in enumerate(pairwise(parts), 1) if not _alike(a, b)), len(parts)}
    for low, high in pairwise(sorted(cuts)):
        if high - low == 1:
            yield parts[low]
        else:
            yield Aligned(cache, buffers, parts[low:high], segments[low][1])


def _alike(one: Attention, other: Attention) -> bool:
    together = one.slot + 1 == other.slot and (one.count, one.reads) == (other.count, other.reads)
    return together and one.causal and other.causal
