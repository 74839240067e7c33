"""Attention of the new rows of one slot: to their ancestors, within the layer's sliding window, and nothing else.

Where slots are padded to one length (`Slots.align`) the padding is read too, and a mask hides it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.model.slots import PAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from engine.model.cache import Buffers, Cache


class Seen(NamedTuple):
    """The part of the cache that layers of one sliding window read."""

    keys: Sequence[Tensor]
    """For each layer; (kv_heads, head_dim, N) for a single row, else (1, kv_heads, N, head_dim)."""
    values: Sequence[Tensor]
    """For each layer, (kv_heads, N, head_dim) or (1, kv_heads, N, head_dim)."""
    mask: Tensor | None
    """(count, N): 0 where a row sees another, minus infinity elsewhere; None when `causal` or all are seen."""
    causal: bool
    """Whether row i sees rows 0 to i."""


class Attention:
    """The new rows of one slot in a forward.

    Args:
        cache: Holds the rows already, without their keys and values.
        buffers: Of the forward.
        slot: The rows' slot.
        first: The first of them in the batch.
        count: How many there are.
    """

    def __init__(self, cache: Cache, buffers: Buffers, slot: int, first: int, count: int) -> None:
        self.slot = slot
        self.stop = cache.length(slot)
        self.start = self.stop - count
        """Rows cached before."""
        self.chained = cache.chain(slot) == self.stop
        """Whether all rows of the slot are one chain: then a row's position is its index."""
        self.count = count
        self.reads = cache.read(slot, count)
        """Rows read: all those of the slot, and padding behind them."""
        self.causal = self.chained or self._padded_chain(cache)
        """Whether a causal mask will do: what a padding row behind the chain sees does not matter."""
        self._cache = cache
        self._single = count == 1 and self.chained and self.reads == self.stop
        self._held = cache.tensor.select(1, slot)
        self._fill = self._held.narrow(2, self.start, count).unbind(0)
        self._new = buffers.kv.narrow(1, first, count)
        self._seen: dict[int | None, Seen] = {}
        shape = cache.shape
        self._grouped = shape.heads != shape.kv_heads
        queries = buffers.queries.narrow(0, first, count)
        read = buffers.read.narrow(0, first, count)
        if self._single:
            self._queries = queries.view(shape.kv_heads, -1, shape.head_dim)
            self._read = read.view(shape.kv_heads, -1, shape.head_dim)
        else:
            self._queries = queries.transpose(0, 1).unsqueeze(0)
            self._read = read.view(queries.shape).transpose(0, 1).unsqueeze(0)

    def _padded_chain(self, cache: Cache) -> bool:
        behind = cache.flags[self.slot, cache.chain(self.slot) : self.stop]
        return bool((behind & PAD).all()) and cache.chain(self.slot) > self.start

    def _low(self, window: int | None) -> int:
        """Return the first row that is read."""
        return max(0, self.start + 1 - window) if window is not None and self.causal else 0

    def cells(self, window: int | None) -> int:
        """Return how many query-key cells a layer of this window computes in one head, masked ones included."""
        return self.count * (self.reads - self._low(window))

    def run(self, layer: int, window: int | None) -> None:
        """Take the buffers' keys and values into the cache and write what each row reads into `buffers.read`.

        Args:
            layer: Number of the layer, from 0.
            window: Positions a row sees, its own included; None for all.
        """
        self._fill[layer].copy_(self._new)
        seen = self._seen.get(window)
        if seen is None:
            seen = self._seen[window] = self._look(window)
        if self._single:
            weights = torch.softmax(torch.bmm(self._queries, seen.keys[layer]), -1)
            torch.bmm(weights, seen.values[layer], out=self._read)
        else:
            read = scaled_dot_product_attention(
                self._queries,
                seen.keys[layer],
                seen.values[layer],
                seen.mask,
                is_causal=seen.causal,
                scale=1.0,
                enable_gqa=self._grouped,
            )
            self._read.copy_(read)

    def _look(self, window: int | None) -> Seen:
        low = self._low(window)
        keys, values = self._held.narrow(2, low, self.reads - low).chunk(2, 1)
        if self._single:
            return Seen(keys.transpose(2, 3).unbind(0), values.unbind(0), None, causal=False)
        wide = window is None or self.stop - low <= window
        causal = self.causal and self.start == 0 and wide and self.reads == self.stop
        mask = None if causal else self._chain_mask(low, window) if self.causal else self._tree_mask(window)
        return Seen(keys.unsqueeze(1).unbind(0), values.unsqueeze(1).unbind(0), mask, causal)

    def _chain_mask(self, low: int, window: int | None) -> Tensor:
        hidden = self._held.new_full((self.count, self.reads - low), -torch.inf)
        mask = hidden.triu(self.start - low + 1)
        return mask if window is None else mask + hidden.tril(self.start - low - window)

    def _tree_mask(self, window: int | None) -> Tensor:
        seen = self._cache.mask(self.slot, self.start)
        if window is not None:
            positions = self._cache.positions[self.slot, : self.stop]
            seen &= positions > positions[self.start :, None] - window
        hidden = torch.from_numpy(~seen).to(self._held.device)
        mask = self._held.new_full((self.count, self.reads), -torch.inf)
        mask[:, : self.stop].zero_().masked_fill_(hidden, -torch.inf)
        return mask
